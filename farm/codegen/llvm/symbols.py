"""What an object refers to: undefined symbols of ELF and WebAssembly objects.

Owns: just enough of WebAssembly's object format. Does not own: ELF (`farm.runtime.elf`), linking.

Invariant: reads objects that LLVM has just written in this process, never bytes from outside.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.runtime.elf import read_elf

_IMPORTS = 2  # section id
_FUNCTION, _TABLE, _MEMORY, _GLOBAL = range(4)  # kinds of imports

# What a WebAssembly linker itself provides.
_LINKER_MADE = frozenset({"__indirect_function_table", "__linear_memory", "__stack_pointer"})


def undefined_symbols(data: bytes) -> tuple[str, ...]:
    """Return the names that an object needs from elsewhere, sorted; those of the linker aside."""
    found = read_elf(data).undefined if data.startswith(b"\x7fELF") else _wasm(data)
    return tuple(sorted(found - _LINKER_MADE))


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

    def skip_import(self) -> None:
        """Skip what follows an import's names."""
        kind = self.number()
        if kind == _FUNCTION:
            self.number()
        elif kind == _GLOBAL:
            self.at += 2
        else:
            self.at += kind == _TABLE
            for _ in range(1 + (self.number() & 1)):
                self.number()


def _wasm(data: bytes) -> frozenset[str]:
    reader, found = _Reader(data, 8), set()
    while reader.at < len(data):
        section, length = reader.number(), reader.number()
        end = reader.at + length
        if section == _IMPORTS:
            for _ in range(reader.number()):
                reader.text()  # the module's name, always "env"
                found.add(reader.text())
                reader.skip_import()
        reader.at = end
    return frozenset(found)
