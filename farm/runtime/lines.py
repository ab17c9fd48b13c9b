"""Which line a kernel was at when a signal ended its process.

Owns: line tables of loaded objects, the handler that looks into them, and what it says.
Does not own: the words (`farm.core.crash_line`).

Invariant: a process without such objects keeps its handlers; with them a signal still ends it, with the same status.

Notes
-----
The handler (`crash.ll`) only reads memory and writes a text that was made before; then the signal's own action runs.
Objects without pyelftools, or hosts whose contexts are not known here, are left alone.
"""

from __future__ import annotations

import ctypes
import io
import itertools
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm

from farm.artifact.module import Section
from farm.core.crash_line import words_for
from farm.runtime.assembled import object_of
from farm.target.host import canonical_arch

_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_CONTEXTS = {"x86_64": 168, "aarch64": 440}
"""Where the instruction pointer is in Linux's ucontext_t."""
_SA_SIGINFO, _SA_RESETHAND, _SA_NODEFER = 4, 1 << 31, 1 << 30
MAX_ROWS = 1 << 16

Row = tuple[int, str]
"""First address, and what to say of it; empty for code without a line."""


class _Action(ctypes.Structure):
    """The C library's struct sigaction, on Linux of 64 bits."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_uint32),
        ("restorer", ctypes.c_void_p),
    )


class _Entry(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("text", ctypes.c_char_p),
        ("length", ctypes.c_uint64),
    )


def line_rows(section: Section, address: int) -> list[Row]:
    """Return the rows of an object whose function is at an address; none if it has no lines."""
    if b".debug_line" not in section.data:
        return []
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:
        return []
    try:
        elf = ELFFile(io.BytesIO(section.data))
        symbols: Any = elf.get_section_by_name(".symtab")
        (symbol,) = symbols.get_symbol_by_name(section.symbol)
        found = _rows(elf.get_dwarf_info(), section.symbol, address - symbol["st_value"])
    except (ELFError, AttributeError, KeyError, TypeError, ValueError):
        return []  # a damaged table: it runs without
    return sorted(itertools.islice(found, MAX_ROWS))


def _rows(dwarf: Any, symbol: str, base: int) -> Iterator[Row]:  # noqa: ANN401 - pyelftools has no types
    for unit in dwarf.iter_CUs():
        program = dwarf.line_program_for_CU(unit)
        names = [entry.name.decode(errors="replace") for entry in program["file_entry"]]
        for entry in program.get_entries():
            state = entry.state
            if state is None:
                continue
            text = ""
            if not state.end_sequence and state.line and 0 < state.file <= len(names):
                text = words_for(symbol, names[state.file - 1], state.line)
            yield base + state.address, text


Link = Callable[[llvm.JITLibraryBuilder], llvm.ResourceTracker]


class Watch:
    """The lines of one loaded module; close it before its code goes away."""

    def __init__(self, link: Link, objects: Sequence[Section], code: Mapping[str, int]) -> None:
        rows = [
            r for each in objects if each.symbol in code for r in line_rows(each, code[each.symbol])
        ]
        self._number = _watched.add(link, rows) if rows and _offset() else None

    def close(self) -> None:
        """Forget the lines; closing again does nothing."""
        if self._number is not None:
            _watched.remove(self._number)
            self._number = None


class _Watched:
    """All that the handler of this process looks into."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Row]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._library: llvm.ResourceTracker | None = None
        self._table: object = None

    def add(self, link: Link, rows: list[Row]) -> int:
        with self._lock:
            if self._library is None:
                self._library = _handler(link)
            number = next(self._numbers)
            self._rows[number] = rows
            self._write()
            return number

    def remove(self, number: int) -> None:
        with self._lock:
            del self._rows[number]
            self._write()

    def _write(self) -> None:
        rows = sorted(row for each in self._rows.values() for row in each)
        table = (_Entry * max(len(rows), 1))()
        for entry, (address, text) in zip(table, rows, strict=False):
            entry.address, entry.text, entry.length = address, text.encode(), len(text.encode())
        assert self._library is not None
        count = ctypes.c_uint64.from_address(self._library["count"])
        count.value = 0  # while the table is another
        ctypes.c_uint64.from_address(self._library["table"]).value = ctypes.addressof(table)
        count.value, self._table = len(rows), table


_watched = _Watched()


def _offset() -> int:
    if sys.platform != "linux":
        return 0
    return _CONTEXTS.get(canonical_arch(platform.machine()), 0)


def _handler(link: Link) -> llvm.ResourceTracker:
    """Link the handler and let signals that crashes cause go there first."""
    process = ctypes.CDLL(None)
    builder = llvm.JITLibraryBuilder()
    builder.add_object_img(object_of("crash.ll"))
    builder.import_symbol("write", ctypes.cast(process.write, ctypes.c_void_p).value or 0)
    for name in ("farm_crashed", "table", "count", "offset"):
        builder.export_symbol(name)
    library = link(builder)
    ctypes.c_uint64.from_address(library["offset"]).value = _offset()
    action = _Action(
        handler=library["farm_crashed"], flags=_SA_SIGINFO | _SA_RESETHAND | _SA_NODEFER
    )
    for number in _SIGNALS:
        process.sigaction(int(number), ctypes.byref(action), None)
    return library
