"""The manifest: what an artifact holds, as canonical JSON.

Owns: the manifest's fields and their checks.
Does not own: the bytes around it (`farm.artifact.container`).

Invariant: `decode_manifest(encode_manifest(m)) == m`; a manifest that does not obey its own limits
is corrupt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.artifact.abi import ABI_VERSION
from farm.artifact.module import SectionKey
from farm.artifact.signature import Signature
from farm.core.digest import canonical_json
from farm.errors import ArtifactCorrupt, ArtifactVersion, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_MANIFEST_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the sections of an artifact have in common, and what is only for people."""

    target_host: str
    targets: Mapping[str, str]
    """Target id → canonical text."""
    symbols: Mapping[str, Signature]
    toolchains: Mapping[SectionKey, str]


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the canonical JSON of a manifest."""
    return canonical_json(
        {
            "abi": ABI_VERSION,
            "target_host": manifest.target_host,
            "targets": dict(manifest.targets),
            "symbols": {
                symbol: signature.to_object() for symbol, signature in manifest.symbols.items()
            },
            "sections": [
                {
                    "symbol": key.symbol,
                    "kind": key.kind,
                    "target": key.target_id,
                    "toolchain": toolchain,
                }
                for key, toolchain in sorted(manifest.toolchains.items())
            ],
        }
    )


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest; keys that it does not know are skipped.

    Raises
    ------
    ArtifactCorrupt
        It is not canonical JSON, or a field is missing or malformed.
    ArtifactVersion
        Its ABI is unknown.
    """
    value = _parse(data)
    abi = value.get("abi")
    if type(abi) is not int:
        raise _corrupt("abi is no integer")
    if abi != ABI_VERSION:
        raise ArtifactVersion(
            f"artifact: built for ABI {abi} (this version knows {ABI_VERSION}); update kernel-farm "
            "or build it again"
        )
    try:
        symbols = {
            symbol: Signature.from_object(signature)
            for symbol, signature in _mapping(value, "symbols").items()
        }
    except InvalidInput as error:
        raise _corrupt(error.message) from error
    return Manifest(
        target_host=_text(value, "target_host"),
        targets={key: _text(value["targets"], key) for key in _mapping(value, "targets")},
        symbols=symbols,
        toolchains=_toolchains(value.get("sections")),
    )


def _parse(data: bytes) -> dict[str, object]:
    if len(data) > MAX_MANIFEST_BYTES:
        raise _corrupt(f"too long ({len(data)} bytes)")
    try:
        value = json.loads(data)
        canonical = canonical_json(value)
    except (ValueError, RecursionError) as error:
        raise _corrupt(f"not JSON ({error})") from error
    if canonical != data or not isinstance(value, dict):
        raise _corrupt("not a canonical JSON object")
    return value


def _toolchains(value: object) -> dict[SectionKey, str]:
    if not isinstance(value, list):
        raise _corrupt("sections is no list")
    found: dict[SectionKey, str] = {}
    for item in value:
        if not isinstance(item, dict):
            raise _corrupt("an item of sections is no object")
        key = SectionKey(_text(item, "symbol"), _text(item, "kind"), _text(item, "target"))
        if key in found:
            raise _corrupt(f"section {key.symbol!r} is listed twice")
        found[key] = _text(item, "toolchain")
    return found


def _mapping(value: dict[str, object], key: str) -> dict[str, object]:
    found = value.get(key)
    if not isinstance(found, dict):
        raise _corrupt(f"{key} is no object")
    return found


def _text(value: object, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise _corrupt(f"{key[:80]!r} is no text")
    return found


def _corrupt(what: str) -> ArtifactCorrupt:
    return ArtifactCorrupt(f"artifact: manifest: {what}; copy or build it again")
