"""What an object refers to: undefined symbols of ELF and WebAssembly objects.

Owns: just enough of the two formats. Does not own: linking.

Invariant: reads objects that LLVM has just written in this process, never bytes from outside.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SYMTAB = 2  # sh_type of the symbol table
_WASM_IMPORTS = 2  # section id
_FUNCTION, _TABLE, _MEMORY, _GLOBAL = range(4)  # kinds of WebAssembly imports

# What a linker itself provides.
LINKER_SYMBOLS = frozenset(
    {
        "_GLOBAL_OFFSET_TABLE_",
        "__indirect_function_table",
        "__linear_memory",
        "__stack_pointer",
    }
)


def undefined_symbols(data: bytes) -> tuple[str, ...]:
    """Return the names that an object needs from elsewhere, sorted; those of the linker aside."""
    found = _elf(data) if data.startswith(b"\x7fELF") else _wasm(data)
    return tuple(sorted(found - LINKER_SYMBOLS))


def elf_machine(data: bytes) -> int:
    """Return ``e_machine`` of an ELF object, such as 62 for x86-64."""
    order = "<" if data[5] == 1 else ">"
    machine: int = struct.unpack_from(f"{order}H", data, 18)[0]
    return machine


def _elf(data: bytes) -> set[str]:
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    offset = struct.unpack_from(f"{order}Q" if wide else f"{order}I", data, 40 if wide else 32)[0]
    size, count = struct.unpack_from(f"{order}HH", data, 58 if wide else 46)
    layout = f"{order}IIQQQQIIQQ" if wide else f"{order}10I"
    sections = [struct.unpack_from(layout, data, offset + size * i) for i in range(count)]
    found: set[str] = set()
    for _, kind, _, _, start, length, link, _, _, entry in sections:
        if kind != _SYMTAB:
            continue
        strings = sections[link][4]
        for at in range(start + entry, start + length, entry):  # the first one is empty
            name = struct.unpack_from(f"{order}I", data, at)[0]
            section = struct.unpack_from(f"{order}H", data, at + (6 if wide else 14))[0]
            if section == 0:
                found.add(data[strings + name : data.index(b"\0", strings + name)].decode())
    return found


@dataclass
class _Reader:
    """A position in a WebAssembly object."""

    data: bytes
    at: int

    def number(self) -> int:
        """Read an unsigned LEB128 number."""
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def text(self) -> str:
        """Read a name."""
        length = self.number()
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def limits(self) -> None:
        """Skip the limits of a table or memory."""
        if self.number() & 1:
            self.number()
        self.number()


def _wasm(data: bytes) -> set[str]:
    reader, found = _Reader(data, 8), set()
    while reader.at < len(data):
        section, length = reader.number(), reader.number()
        end = reader.at + length
        if section == _WASM_IMPORTS:
            for _ in range(reader.number()):
                reader.text()
                found.add(reader.text())
                _skip_import(reader)
        reader.at = end
    return found


def _skip_import(reader: _Reader) -> None:
    kind = reader.number()
    if kind == _FUNCTION:
        reader.number()
    elif kind == _GLOBAL:
        reader.at += 2
    else:
        if kind == _TABLE:
            reader.at += 1
        reader.limits()
