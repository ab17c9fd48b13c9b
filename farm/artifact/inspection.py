"""Telling what is in an artifact without executing anything.

Owns: the plain description that people and programs read.
Does not own: how it is shown (`farm.cli`).

Invariant: whatever `Artifact.from_bytes` refuses, `inspect_bytes` refuses with the same error.
"""

from __future__ import annotations

import hashlib

from farm.artifact import container
from farm.artifact.abi import ABI_VERSION
from farm.artifact.artifact import Artifact
from farm.core.digest import digest_of


def inspect_bytes(data: bytes) -> dict[str, object]:
    """Describe a `.farm` file as plain data, ready for JSON; raises as `Artifact.from_bytes`."""
    artifact = Artifact.from_bytes(data)
    header, entries = container.decode(data)
    digest = digest_of(data)
    return {
        "format": f"{container.MAJOR}.{header.minor}",
        "abi": ABI_VERSION,
        "sha256": digest.sha256,
        "size_bytes": digest.size_bytes,
        "target_host": artifact.target_host,
        "targets": sorted({section.target for section in artifact.sections}),
        "symbols": {
            symbol: signature.to_object()["params"] for symbol, signature in artifact.signatures
        },
        "sections": [
            {
                "kind": section.kind,
                "symbol": section.symbol,
                "target": section.target,
                "target_id": section.target_id,
                "format": section.format,
                "format_version": section.format_version,
                "requires": list(section.requires),
                "toolchain": section.toolchain,
                "size_bytes": len(section.data),
                "sha256": hashlib.sha256(section.data).hexdigest(),
            }
            for section in artifact.sections
        ],
        "skipped_sections": len(entries) - 1 - len(artifact.sections),
    }
