"""What a code generator returns for one function and one target, and its place in an artifact.

Owns: `BuiltModule` and `Section`, and which field values are acceptable.
Does not own: the bytes' meaning (`format` names who knows it) or their layout in a file.

Invariant: a value that exists obeys every limit of the file format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from farm.artifact.signature import NAME, Signature
from farm.errors import InvalidInput

Kind = Literal["device", "host"]
KINDS: tuple[str, ...] = ("device", "host")

ELF_OBJECT = "elf-object"
WASM_OBJECT = "wasm-object"
EA_PROGRAM = "ea-program"
OPENCL_SOURCE = "opencl-source"

MAX_SECTION_BYTES = 1 << 29
MAX_REQUIRES = 256

_FORMAT = re.compile(r"[a-z][a-z0-9-]{0,62}")
_REQUIRE = re.compile(r"[a-z][a-z0-9-]{0,62}:[A-Za-z0-9][A-Za-z0-9._+-]{0,126}")
_TEXT = re.compile(r"[ -~]{1,1024}")
_TARGET_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, order=True)
class SectionKey:
    """What makes a section unique in an artifact; also the order of sections in a file."""

    symbol: str
    kind: str
    target_id: str


@dataclass(frozen=True, slots=True)
class BuiltModule:
    """One function compiled for one target.

    Parameters
    ----------
    kind
        ``device``: the function itself. ``host``: the stub that launches an accelerator's function.
    symbol
        Linker symbol: the public name, or `farm.artifact.abi.private_symbol` of a private helper's
        name.
    target
        Canonical text of the target that it was compiled for; of target_host for a ``host`` module.
    format, format_version
        What the bytes are: ``elf-object``, ``wasm-object``, ``ea-program`` or ``opencl-source``.
    requires
        What a device must provide, such as ``cpu-feature:avx2``; sorted, unique.
    toolchain
        Compiler and version.
    signature
        The same for every module of a symbol.
    data
        The compiled bytes, 1 byte to 512 MiB.
    """

    kind: Kind
    symbol: str
    target: str
    format: str
    format_version: int
    requires: tuple[str, ...]
    toolchain: str
    signature: Signature
    data: bytes

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Section:
    """One module inside an artifact; its signature is in `Artifact.symbols`."""

    kind: Kind
    symbol: str
    target: str
    target_id: str
    format: str
    format_version: int
    requires: tuple[str, ...]
    toolchain: str
    data: bytes

    def __post_init__(self) -> None:
        check_fields(self)
        if not _TARGET_ID.fullmatch(self.target_id):
            raise InvalidInput(
                f"{self.symbol}: malformed target id ({self.target_id[:40]!r}); use Target.id"
            )

    @property
    def key(self) -> SectionKey:
        """What makes it unique in its artifact."""
        return SectionKey(self.symbol, self.kind, self.target_id)

    def __str__(self) -> str:
        """Return ``symbol (kind, target)``, as messages show it."""
        return f"{self.symbol} ({self.kind}, {self.target})"


def check_fields(module: BuiltModule | Section) -> None:
    """Raise InvalidInput if a field breaks a limit of the file format."""
    if not NAME.fullmatch(module.symbol):
        raise InvalidInput(
            f"module: malformed symbol ({module.symbol[:80]!r}); use a C identifier of at most 256"
        )
    subject = f"module {module.symbol}"
    if module.kind not in KINDS:
        raise InvalidInput(
            f"{subject}: unknown kind ({module.kind[:80]!r}); use {', '.join(KINDS)}"
        )
    for label, text in (("target", module.target), ("toolchain", module.toolchain)):
        if not _TEXT.fullmatch(text):
            raise InvalidInput(
                f"{subject}: bad {label} ({text[:80]!r}); use 1 to 1024 printable ASCII characters"
            )
    if not _FORMAT.fullmatch(module.format) or not 0 <= module.format_version < 1 << 16:
        raise InvalidInput(
            f"{subject}: bad format ({module.format[:80]!r} version {module.format_version}); use "
            "a lower-case name and a version below 65536"
        )
    if not 1 <= len(module.data) <= MAX_SECTION_BYTES:
        raise InvalidInput(
            f"{subject}: bad size ({len(module.data)} bytes); use 1 to {MAX_SECTION_BYTES}"
        )
    _check_requires(subject, module.requires)


def _check_requires(subject: str, requires: tuple[str, ...]) -> None:
    if len(requires) > MAX_REQUIRES or list(requires) != sorted(set(requires)):
        raise InvalidInput(
            f"{subject}: requirements are not sorted, unique and at most {MAX_REQUIRES} "
            f"({len(requires)}); use Target.requires"
        )
    for requirement in requires:
        if not _REQUIRE.fullmatch(requirement):
            raise InvalidInput(
                f"{subject}: malformed requirement ({requirement[:80]!r}); use class:name"
            )
