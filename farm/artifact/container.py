"""The bytes of a `.farm` file: header, aligned sections, table.

Owns: where each byte stands, and that every changed byte is found.
Does not own: what sections mean (`farm.artifact.artifact`).

Invariant: `decode` accepts exactly what `encode` can write (newer minor versions aside), raises
nothing but `ArtifactError`, and allocates no more than a small multiple of the bytes it was given.

Format 1.0, all numbers little-endian:

======  ====  =========================================================
offset  size  header
======  ====  =========================================================
0       8     magic ``89 'F' 'A' 'R' 'M' 0d 0a 1a`` (finds text-mode copies)
8       2     major version: a reader refuses any other than its own
10      2     minor version: a newer one only adds things to skip
12      4     number of table entries
16      8     length of the whole file
24      8     offset of the table; it ends where the file ends
32      32    SHA-256 of bytes 0 to 31 and the table
======  ====  =========================================================

Each section starts at the next multiple of 64 after the one before it; so does the table; bytes
between are zero. Every entry holds its section's SHA-256. So header and table are covered by the
header's digest, sections by their own, and gaps by the zero rule: one flipped bit anywhere is
found, and one section can be checked without reading the others.

An entry is ``u32 size of the entry, u16 kind, u16 flags, u32 format version, u64 offset, u64 size,
32 bytes SHA-256`` and the texts target id, symbol, format (each u16 length and UTF-8), then u16
count and as many texts `requires`. Flag bit 0 marks a kind that a reader may skip if it does not
know it. A newer minor version may add bytes at the end.

Versions: 1.0 is the first.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.artifact.module import MAX_REQUIRES, MAX_SECTION_BYTES
from farm.errors import ArtifactCorrupt, ArtifactTruncated, ArtifactVersion, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC = b"\x89FARM\r\n\x1a"
MAJOR, MINOR = 1, 0
ALIGN_BYTES = 64
FLAG_OPTIONAL = 1

KIND_MANIFEST, KIND_DEVICE, KIND_HOST = 1, 2, 3

MAX_FILE_BYTES = 1 << 31
MAX_ENTRIES = 16_384
MAX_TABLE_BYTES = 1 << 24

_PREFIX = struct.Struct("<8sHHIQQ")
HEADER_BYTES = _PREFIX.size + 32
_ENTRY = struct.Struct("<IHHIQQ32s")
_U16 = struct.Struct("<H")


@dataclass(frozen=True, slots=True)
class Entry:
    """One section as the table tells of it."""

    kind: int
    flags: int
    format_version: int
    target_id: str
    symbol: str
    format: str
    requires: tuple[str, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """What the header says, after its checks."""

    minor: int
    count: int
    length: int
    table_offset: int
    digest: bytes


def encode(entries: Sequence[Entry]) -> bytes:
    """Return the file that holds these sections, in this order.

    Raises
    ------
    InvalidInput
        The file would break a limit of the format.
    """
    if len(entries) > MAX_ENTRIES:
        raise InvalidInput(
            f"artifact: too many sections ({len(entries)}); use at most {MAX_ENTRIES}"
        )
    body, table = bytearray(HEADER_BYTES), bytearray()
    for entry in entries:
        table += _encode_entry(entry, len(body))
        body += entry.data
        body += bytes(-len(body) % ALIGN_BYTES)
        if len(body) + len(table) > MAX_FILE_BYTES or len(table) > MAX_TABLE_BYTES:
            raise InvalidInput(
                f"artifact: too large (over {MAX_FILE_BYTES} bytes, or {MAX_TABLE_BYTES} of "
                "table); build fewer functions or targets into one artifact"
            )
    length = len(body) + len(table)
    prefix = _PREFIX.pack(MAGIC, MAJOR, MINOR, len(entries), length, len(body))
    body[:HEADER_BYTES] = prefix + hashlib.sha256(prefix + table).digest()
    return bytes(body + table)


def _encode_entry(entry: Entry, offset: int) -> bytes:
    tail = b"".join(_encode_text(text) for text in (entry.target_id, entry.symbol, entry.format))
    tail += _U16.pack(len(entry.requires)) + b"".join(map(_encode_text, entry.requires))
    fixed = _ENTRY.pack(
        _ENTRY.size + len(tail),
        entry.kind,
        entry.flags,
        entry.format_version,
        offset,
        len(entry.data),
        hashlib.sha256(entry.data).digest(),
    )
    return fixed + tail


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return _U16.pack(len(data)) + data


def decode(data: bytes) -> tuple[Header, tuple[Entry, ...]]:
    """Return the header and the sections of a file, all digests checked.

    Raises
    ------
    ArtifactTruncated
        The file ends before its header says.
    ArtifactCorrupt
        A digest does not match, or a field is impossible.
    ArtifactVersion
        The major version is unknown.
    """
    header = read_header(data)
    table = data[header.table_offset :]
    if hashlib.sha256(data[: _PREFIX.size] + table).digest() != header.digest:
        raise ArtifactCorrupt(
            "artifact: header or table does not match its digest; copy or build it again"
        )
    reader = _Reader(table)
    entries: list[Entry] = []
    end = HEADER_BYTES
    for _ in range(header.count):
        start = end + -end % ALIGN_BYTES
        _check_gap(data, end, start)
        entry = _decode_entry(reader, data, header, start)
        end = start + len(entry.data)
        entries.append(entry)
    if reader.offset != len(table):
        raise _corrupt(f"{len(table) - reader.offset} bytes follow the last table entry")
    if header.table_offset != end + -end % ALIGN_BYTES:
        raise _corrupt(f"table starts at {header.table_offset}, sections end at {end}")
    _check_gap(data, end, header.table_offset)
    return header, tuple(entries)


def read_header(data: bytes) -> Header:
    """Return the header of a file after checking it against the file's size; raises as `decode`."""
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise ArtifactCorrupt(
            f"artifact: wrong magic ({data[: len(MAGIC)].hex()}); this is no .farm file, or it was "
            "damaged"
        )
    if len(data) < HEADER_BYTES:
        raise ArtifactTruncated(
            f"artifact: shorter than its header ({len(data)} bytes); copy it again"
        )
    _, major, minor, count, length, table_offset = _PREFIX.unpack_from(data)
    if major != MAJOR:
        raise ArtifactVersion(
            f"artifact: unknown major version ({major}.{minor}, this reader knows {MAJOR}); update "
            "kernel-farm or build the artifact again"
        )
    if length > len(data):
        raise ArtifactTruncated(
            f"artifact: ends early ({len(data)} of {length} bytes); copy it again"
        )
    if length < len(data):
        raise _corrupt(f"{len(data) - length} bytes follow its end")
    if length > MAX_FILE_BYTES or count > MAX_ENTRIES:
        raise _corrupt(f"over the limits ({length} bytes, {count} sections)")
    table_bytes = length - table_offset
    if table_offset < HEADER_BYTES or not 0 <= table_bytes <= MAX_TABLE_BYTES:
        raise _corrupt(f"impossible table offset {table_offset} of {length} bytes")
    if count * _ENTRY.size > table_bytes:
        raise _corrupt(f"{count} entries do not fit a table of {table_bytes} bytes")
    return Header(minor, count, length, table_offset, data[_PREFIX.size : HEADER_BYTES])


class _Reader:
    """A cursor over the table that never reads past it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.offset:
            raise _corrupt(f"the table ends inside an entry, at byte {self.offset}")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def u16(self) -> int:
        return int(_U16.unpack(self.take(_U16.size))[0])

    def text(self) -> str:
        try:
            return self.take(self.u16()).decode()
        except UnicodeDecodeError as error:
            raise _corrupt(f"a text of the table is not UTF-8 ({error.reason})") from error


def _decode_entry(reader: _Reader, data: bytes, header: Header, start: int) -> Entry:
    """Read the next entry, whose section must be at `start`, and check that section."""
    begin = reader.offset
    fields = _ENTRY.unpack(reader.take(_ENTRY.size))
    entry_bytes, kind, flags, format_version, offset, size, sha256 = fields
    target_id, symbol, format_ = reader.text(), reader.text(), reader.text()
    count = reader.u16()
    if count > MAX_REQUIRES:
        raise _corrupt(f"section {symbol[:80]!r} requires too much ({count})")
    requires = tuple(reader.text() for _ in range(count))
    extra = begin + entry_bytes - reader.offset
    if extra < 0 or (extra > 0 and header.minor <= MINOR):
        raise _corrupt(f"the entry of {symbol[:80]!r} has an impossible size ({entry_bytes})")
    reader.take(extra)
    if offset != start:
        raise _corrupt(f"section {symbol[:80]!r} starts at {offset}, not at {start}")
    if size > MAX_SECTION_BYTES or offset + size > header.table_offset:
        raise _corrupt(f"section {symbol[:80]!r} does not fit the file ({offset} + {size})")
    content = data[offset : offset + size]
    if hashlib.sha256(content).digest() != sha256:
        raise _corrupt(f"section {symbol[:80]!r} does not match its digest")
    return Entry(kind, flags, format_version, target_id, symbol, format_, requires, content)


def _check_gap(data: bytes, start: int, stop: int) -> None:
    if any(data[start:stop]):
        raise _corrupt(f"bytes {start} to {stop} between sections are not zero")


def _corrupt(what: str) -> ArtifactCorrupt:
    return ArtifactCorrupt(f"artifact: {what}; copy or build it again")
