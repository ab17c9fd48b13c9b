"""Which symbols an ELF object defines and lacks, read without trusting it.

Owns: enough of ELF (little-endian, 32 and 64 bits, relocatable) to check a link before it is done.
Does not own: linking.

Invariant: any bytes at all give an answer or `ArtifactError`; nothing outside them is read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.artifact.abi import ALLOWED_IMPORTS
from farm.artifact.module import ELF_OBJECT, Section
from farm.errors import ArtifactError, DuplicateSymbol, HostMismatch, UndefinedReference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MACHINES = {"x86_64": 62, "aarch64": 183, "riscv64": 243, "armv7": 40}
"""e_machine of each architecture."""

_LINKER_MADE = frozenset({"_GLOBAL_OFFSET_TABLE_"})
_SHT_SYMTAB, _SHN_UNDEF, _STB_LOCAL, _STB_WEAK, _ET_REL = 2, 0, 0, 2, 1


@dataclass(frozen=True, slots=True)
class ElfObject:
    """Facts of one object; names of global symbols only."""

    machine: int
    defined: frozenset[str]
    undefined: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where fields are in one class of ELF: struct formats, in the order that `_Layout` lists."""

    header: struct.Struct
    """type, machine, section header offset, entry size, count (after the 16 identity bytes)."""
    section: struct.Struct
    """type, offset, size, link."""
    symbol: struct.Struct
    """name, info, section index."""


_LAYOUTS = {
    1: _Layout(struct.Struct("<HH12xI10xHH"), struct.Struct("<4xI8xIII"), struct.Struct("<I8xBxH")),
    2: _Layout(struct.Struct("<HH20xQ10xHH"), struct.Struct("<4xI16xQQI"), struct.Struct("<IBxH")),
}
_SYMBOL_BYTES = {1: 16, 2: 24}


def read_elf(data: bytes) -> ElfObject:
    """Read an object's machine and global symbols; raises ArtifactError if it is none."""
    if data[:4] != b"\x7fELF" or len(data) < 20 or data[4] not in _LAYOUTS or data[5] != 1:
        raise _malformed("no little-endian ELF file")
    layout = _LAYOUTS[data[4]]
    try:
        kind, machine, offset, entry_bytes, count = layout.header.unpack_from(data, 16)
        if kind != _ET_REL or entry_bytes < layout.section.size:
            raise _malformed(f"not relocatable (type {kind})")
        sections = [
            layout.section.unpack_from(data, offset + index * entry_bytes) for index in range(count)
        ]
        found = list(_symbols(data, layout, sections, _SYMBOL_BYTES[data[4]]))
    except (struct.error, OverflowError) as error:  # the latter of an offset beyond any file
        raise _malformed(f"a table ends outside the file ({error})") from error
    named = [(name, index, info >> 4) for name, info, index in found if name and info >> 4]
    defined = frozenset(name for name, index, _ in named if index != _SHN_UNDEF)
    undefined = frozenset(
        name for name, index, bind in named if index == _SHN_UNDEF and bind != _STB_WEAK
    )
    return ElfObject(machine, defined, undefined - defined - _LINKER_MADE)


def check_link(arch: str, sections: Sequence[Section]) -> None:
    """Check that objects fit together, before a linker sees them.

    Raises
    ------
    UndefinedReference
        A symbol is defined in no object and is not among `ALLOWED_IMPORTS`; lists who refers to it.
    DuplicateSymbol
        Two objects define one symbol.
    HostMismatch
        An object is for another architecture than `arch`.
    ArtifactError
        A section is no ELF object that this version links.
    """
    objects = [(section, _read_section(section, arch)) for section in sections]
    defined: dict[str, Section] = {}
    for section, elf in objects:
        for name in sorted(elf.defined):
            if name in ALLOWED_IMPORTS or name in defined:
                other = defined.get(name, "the runtime")
                raise DuplicateSymbol(
                    f"link: {section} and {other} both define {name[:80]!r}; rename one",
                    symbol=name[:80],
                )
            defined[name] = section
    for section, elf in objects:
        _check_defined(section, elf.undefined, defined, objects)


def _read_section(section: Section, arch: str) -> ElfObject:
    if (section.format, section.format_version) != (ELF_OBJECT, 1):
        raise ArtifactError(
            f"{section}: cannot link format {section.format} version {section.format_version}; "
            "update kernel-farm or build it again"
        )
    elf = read_elf(section.data)
    if elf.machine != MACHINES.get(arch):
        names = {number: name for name, number in MACHINES.items()}
        has = names.get(elf.machine, f"ELF machine {elf.machine}")
        raise HostMismatch(
            f"{section}: its code is for {has}, this device is {arch}; build it for {arch}",
            has=has,
            needs=arch,
        )
    return elf


def _check_defined(
    section: Section,
    undefined: frozenset[str],
    defined: Iterable[str],
    objects: Sequence[tuple[Section, ElfObject]],
) -> None:
    lacking = sorted(undefined.difference(defined, ALLOWED_IMPORTS))
    if lacking:
        name = lacking[0]
        referrers = ", ".join(s.symbol for s, elf in objects if name in elf.undefined)
        raise UndefinedReference(
            f"link: nothing on this device defines {name[:80]!r} (used by {referrers}); build it "
            f"for {section.target} too",
            symbol=name[:80],
            referrers=referrers,
        )


def _symbols(
    data: bytes, layout: _Layout, sections: Sequence[tuple[int, ...]], entry_bytes: int
) -> Iterator[tuple[str, int, int]]:
    for kind, offset, size, link in sections:
        if kind != _SHT_SYMTAB:
            continue
        if link >= len(sections) or offset + size > len(data):
            raise _malformed("its symbol table lies outside the file")
        _, names_at, names_bytes, _ = sections[link]
        names = data[names_at : names_at + names_bytes]
        for at in range(offset, offset + size - entry_bytes + 1, entry_bytes):
            name_at, info, index = layout.symbol.unpack_from(data, at)
            end = names.find(b"\0", name_at)
            if end < 0:
                raise _malformed("a symbol's name lies outside the file")
            yield names[name_at:end].decode(errors="replace"), info, index


def _malformed(what: str) -> ArtifactError:
    return ArtifactError(f"object: {what}; build it again")
