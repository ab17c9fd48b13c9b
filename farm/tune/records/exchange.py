"""Records in files that other programs read: JSON lines, and Parquet.

Owns: both forms. Does not own: the database.

Invariant: what is imported is checked line by line before any of it is kept; exporting and importing into an empty
database gives the same records.

Version history of the lines: 1 - first; 2 - decisions say which ones they replace. Each is one object: first
``{"kernel_farm_records": VERSION}``, then ``{"workload": ..}``, ``{"record": ..}``, ``{"winner": ..}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from farm.core.files import check_apart, replacing
from farm.errors import FarmError, InvalidInput
from farm.schedule import Trace
from farm.tune.records.database import Records
from farm.tune.records.record import (
    Record,
    Workload,
    canonical,
    workload_from_plain,
    workload_to_plain,
)
from farm.tune.records.winner import Winner

VERSION = 2
MARK = "kernel_farm_records"
MAX_LINE = 64 << 20
BATCH = 1000


def export_records(source: Records, path: Path) -> int:
    """Write everything to a file, Parquet if its name ends so, else JSON lines; returns the number of records.

    Raises
    ------
    InvalidInput
        Parquet is asked for and pyarrow is not installed, or the file is the database itself.
    OSError
        It cannot be written; what was there is left as it was.
    """
    check_apart(path, source.path)
    if path.suffix == ".parquet":
        return _write_parquet(source, path)
    count = 0
    with replacing(path, private=False) as file:
        for line in _lines(source):
            file.write(canonical(line).encode() + b"\n")
            count += "record" in line
    return count


def import_records(into: Records, path: Path) -> int:
    """Add what a file holds; returns how many records were new.

    Raises
    ------
    InvalidInput
        It is no such file, or a line is malformed; nothing was added.
    """
    if path.suffix == ".parquet":
        found = [_entry(path, number, line) for number, line in _read_parquet(path)]
    else:
        with path.open("rb") as file:
            found = [_entry(path, number, line) for number, line in _read_lines(path, file)]
    new = 0
    workloads = [each for each in found if isinstance(each, Workload)]
    known = {each.id for each in [*workloads, *into.workloads()]}
    for each in found:
        if not isinstance(each, Workload) and each.key.workload not in known:
            raise InvalidInput(
                f"{path}: a record of workload {each.key.workload[:80]}, which is not in it; export it again"
            )
    into.add(workloads_=workloads)
    for start in range(0, len(found), BATCH):
        part = found[start : start + BATCH]
        new += into.add(
            [each for each in part if isinstance(each, Record)],
            winners_=[each for each in part if isinstance(each, Winner)],
        )
    return new


def _lines(source: Records) -> Iterator[dict[str, Any]]:
    yield {MARK: VERSION}
    for workload in source.workloads():
        yield {"workload": workload_to_plain(workload)}
    for record in source.find():
        yield {"record": record.to_plain()}
    for winner in source.winners():
        yield {"winner": winner.to_plain()}


def _read_lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise InvalidInput(f"{path}:{number}: a line of more than {MAX_LINE} bytes")
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path}:{number}: no JSON ({error}); export it again") from error
        if number == 1:
            _check_version(path, value)
        else:
            yield number, value
    if not number:
        raise InvalidInput(f"{path}: empty; export it again")


def _check_version(path: Path, value: Any) -> None:  # noqa: ANN401 - JSON
    version = value.get(MARK) if isinstance(value, dict) else None
    if version is None:
        raise InvalidInput(
            f"{path}: no records of kernel-farm; use what `farm records export` wrote"
        )
    if type(version) is not int or not 1 <= version <= VERSION:
        raise InvalidInput(
            f"{path}: version {str(version)[:40]}, this kernel-farm reads 1 to {VERSION}; update it"
        )


_ENTRIES: dict[str, Callable[[Any], Workload | Record | Winner]] = {
    "workload": workload_from_plain,
    "record": Record.from_plain,
    "winner": Winner.from_plain,
}


def _entry(path: Path, number: int, value: Any) -> Workload | Record | Winner:  # noqa: ANN401 - JSON
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _ENTRIES:
        raise InvalidInput(f"{path}:{number}: neither workload, record nor winner; export it again")
    ((kind, plain),) = value.items()
    try:
        entry = _ENTRIES[kind](plain)
        if isinstance(entry, Winner) and entry.trace:
            Trace.from_json(
                entry.trace
            )  # nothing is ever deleted: what no build could use must not come in
    except FarmError as error:
        raise InvalidInput(f"{path}:{number}: {error.message}") from error
    return entry


def _pyarrow() -> Any:  # noqa: ANN401 - of an extra
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidInput(
            "records: Parquet needs pyarrow; pip install 'kernel-farm[parquet]', or use .jsonl"
        ) from error
    return pyarrow


_COLUMNS = ("kind", "workload", "target", "host", "outcome", "value", "unit", "wall", "plain")


def _write_parquet(source: Records, path: Path) -> int:
    """One row for each line: columns to filter by, and all of it as JSON."""
    arrow = _pyarrow()
    rows = []
    for line in _lines(source):
        ((kind, plain),) = line.items()
        if kind != MARK:
            own = {name: plain.get(name) for name in _COLUMNS}
            own |= {"kind": kind, "plain": canonical(plain)}
            own["workload"] = plain.get("workload", plain.get("id"))
            own["value"] = None if own["value"] is None else float(own["value"])
            rows.append(own)
    kinds = dict.fromkeys(_COLUMNS, arrow.string()) | dict.fromkeys(
        ("value", "wall"), arrow.float64()
    )
    schema = arrow.schema(list(kinds.items()), metadata={MARK: str(VERSION)})
    with replacing(path, private=False) as file:
        arrow.parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), file)
    return sum(row["kind"] == "record" for row in rows)


def _read_parquet(path: Path) -> Iterable[tuple[int, Any]]:
    arrow = _pyarrow()
    try:
        table = arrow.parquet.read_table(path)
        described = table.schema.metadata or {}
        version = described.get(MARK.encode(), b"").decode()
        _check_version(path, {MARK: int(version)} if version.isdecimal() else {})
        rows = table.select(["kind", "plain"]).to_pylist()
        return [(n, {row["kind"]: json.loads(row["plain"])}) for n, row in enumerate(rows, 1)]
    except (arrow.ArrowException, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: no records in Parquet ({error}); export it again") from error
