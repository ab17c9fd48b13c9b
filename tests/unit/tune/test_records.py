"""Records: they come back as they were put in, whoever else writes, and nothing else is read."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

import farm.ops as ops
import farm.te as te
from farm.building import plan
from farm.errors import InvalidInput
from farm.ir import Function, interpret
from farm.target import Target
from farm.tune.records import Key, Outcome, Record, Records, Winner, Workload
from farm.tune.records import database as database_module
from farm.tune.records.exchange import _read_lines, export_records, import_records
from farm.tune.records.standing import standing
from farm.tune.templates import template_for

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"


def function(name: str = "scale", size: int = 70) -> Function:
    x = te.placeholder((size,), name="x")
    return te.function(name, [x, ops.relu(x)])


WORKLOAD = Workload.of(function())
KEY = Key(WORKLOAD.id, X86, "host-1", "warm", "toolchain 1")


def record(value: float | None = 100.0, key: Key = KEY, **changes: object) -> Record:
    outcome = Outcome.OK if value is not None else Outcome.CRASH
    whole = Record(
        key=key,
        template="llvm 1",
        configuration={"width": 8},
        trace="{}",
        outcome=outcome,
        value=value,
        unit="ns",
        clock="cpu_ns",
        timing_class="native",
        grade="A",
        checked=True,
        device_id="cpu-1",
        samples={"calls": 3, "wall_ns": [1, 2, 3], "disturbed": []},
        statistics={"median": 2.0},
        fingerprint={"cpu": "x", "governor": None},
        phases={"time": 0.5},
        run="run-1",
        wall=12.5,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Records(tmp_path / "tune.db") as opened:
        yield opened


def test_what_was_added_is_found_again_whole(records: Records, tmp_path: Path) -> None:
    first, failed = record(), record(None, error_code="KERNEL_CRASHED", error_message="SIGSEGV")
    other = record(7.0, key=replace(KEY, host="host-2"))
    assert records.add([first, failed, other], workloads_=[WORKLOAD]) == 3
    with Records(tmp_path / "tune.db", create=False) as again:
        assert again.under(KEY) == [first, failed]
        assert list(again.find(outcome=Outcome.OK)) == [first, other]
        assert again.workloads() == [WORKLOAD]
        assert again.workloads()[0].function == WORKLOAD.function


def test_adding_again_changes_nothing(records: Records) -> None:
    assert records.add([record(), record()]) == 1
    assert records.add([record()]) == 0
    assert len(records.under(KEY)) == 1


@pytest.mark.parametrize("statement", ["DELETE FROM records", "UPDATE records SET value = 1"])
def test_database_itself_refuses_to_change_what_was_recorded(
    records: Records, statement: str
) -> None:
    records.add([record()])
    with sqlite3.connect(records.path) as raw, pytest.raises(sqlite3.IntegrityError, match="never"):
        raw.execute(statement)
    raw.close()
    assert records.under(KEY) == [record()]


def test_workload_is_the_same_whatever_the_function_s_name() -> None:
    assert Workload.of(function("other")).id == WORKLOAD.id
    assert Workload.of(replace(function(), target=X86)).id == WORKLOAD.id
    assert Workload.of(function(size=71)).id != WORKLOAD.id


def decision(
    value: float, wall: float, *over: Winner, key: Key = KEY, silent: bool = False
) -> Winner:
    """Return a decision that replaces others; a silent one says nothing of that."""
    replaces = None if silent else tuple(each.id for each in over)
    width = {"width": int(value)}
    return Winner(key, "llvm 1", width, "", value, "ns", run="run", wall=wall, replaces=replaces)


FIRST = decision(30.0, 1.0)
SECOND = decision(20.0, 2.0, FIRST)
APART = decision(25.0, 3.0)
"""Of somebody who knew of neither."""
BUSY = decision(40.0, 4.0, SECOND, APART)
"""Faster than both in its comparison, on a day when all was slower."""
OLD, OLD_LAST = decision(10.0, 0.1, silent=True), decision(12.0, 0.2, silent=True)


@pytest.mark.parametrize(
    ("decisions", "stands"),
    [
        ((FIRST, SECOND), SECOND),
        ((FIRST, APART), APART),  # the faster one of those that nobody compared, not the later
        ((SECOND, APART), SECOND),
        ((FIRST, SECOND, APART), SECOND),
        ((FIRST, SECOND, APART, BUSY), BUSY),
        ((OLD, OLD_LAST), OLD_LAST),
        ((OLD, OLD_LAST, decision(11.0, 5.0, OLD_LAST)), decision(11.0, 5.0, OLD_LAST)),
        ((FIRST, decision(50.0, 6.0, silent=True)), decision(50.0, 6.0, silent=True)),
    ],
)
def test_decision_that_stands_does_not_depend_on_the_order_of_adding(
    records: Records, decisions: tuple[Winner, ...], stands: Winner
) -> None:
    for order in itertools.permutations(decisions):
        assert standing(order) == {KEY: stands}
    records.add(winners_=reversed(decisions))
    assert records.best(KEY.workload, KEY.target) == stands


def test_decisions_that_replace_each_other_still_have_one_that_stands(records: Records) -> None:
    ahead = decision(20.0, 9.0, silent=True)  # its clock was ahead of the one of who replaced it
    records.add(winners_=[ahead, decision(15.0, 2.0, ahead)])
    assert records.best(KEY.workload, KEY.target) == decision(15.0, 2.0, ahead)


def test_best_of_several_hosts_is_of_the_one_decided_last(records: Records) -> None:
    elsewhere = decision(90.0, 9.0, key=replace(KEY, host="host-2"))
    records.add(winners_=[elsewhere, FIRST, SECOND])
    assert records.best(KEY.workload, KEY.target) == elsewhere
    assert records.best(KEY.workload, KEY.target, host="host-1") == SECOND
    assert records.best("unknown", KEY.target) is None


def test_importing_an_older_export_changes_nothing_that_is_applied(
    records: Records, tmp_path: Path
) -> None:
    records.add([record()], workloads_=[WORKLOAD], winners_=[FIRST])
    export_records(records, tmp_path / "older.jsonl")
    records.add(winners_=[SECOND])
    with Records(tmp_path / "other.db") as other:
        other.add(workloads_=[WORKLOAD], winners_=[SECOND])
        import_records(other, tmp_path / "older.jsonl")
        import_records(records, tmp_path / "older.jsonl")
        assert other.best(KEY.workload, KEY.target) == SECOND
        assert records.best(KEY.workload, KEY.target) == SECOND


def test_two_databases_that_exchange_all_agree(records: Records, tmp_path: Path) -> None:
    records.add(workloads_=[WORKLOAD], winners_=[FIRST, SECOND])
    with Records(tmp_path / "other.db") as other:
        other.add(workloads_=[WORKLOAD], winners_=[APART])
        export_records(records, tmp_path / "mine.jsonl")
        export_records(other, tmp_path / "theirs.jsonl")
        import_records(records, tmp_path / "theirs.jsonl")
        import_records(other, tmp_path / "mine.jsonl")
        assert records.standing() == other.standing() == {KEY: SECOND}
        assert list(records.winners()) != list(other.winners())  # only their order differs


def test_database_and_export_of_the_first_version_are_read(tmp_path: Path) -> None:
    with Records(tmp_path / "tune.db") as records:
        records.add(workloads_=[WORKLOAD], winners_=[OLD, OLD_LAST])
    with contextlib.closing(sqlite3.connect(tmp_path / "tune.db")) as raw:
        raw.execute("PRAGMA user_version = 1")
    with Records(tmp_path / "tune.db") as records:
        assert list(records.winners()) == [OLD, OLD_LAST]
        export_records(records, tmp_path / "all.jsonl")
    with contextlib.closing(sqlite3.connect(tmp_path / "tune.db")) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (2,)
    first, *rest = (tmp_path / "all.jsonl").read_text().splitlines()
    assert json.loads(first) == {"kernel_farm_records": 2}
    old = "\n".join(['{"kernel_farm_records":1}', *rest]) + "\n"
    (tmp_path / "old.jsonl").write_text(old)
    with Records(tmp_path / "new.db") as records:
        import_records(records, tmp_path / "old.jsonl")
        assert list(records.winners()) == [OLD, OLD_LAST]


@pytest.mark.parametrize("replaces", [None, "x", [1], ["short"], {"a": 1}])
def test_decision_that_replaces_what_is_no_id_is_refused(replaces: object) -> None:
    with pytest.raises(InvalidInput, match="bad replaces"):
        Winner.from_plain({**FIRST.to_plain(), "replaces": replaces})


def test_quarantine_lists_what_took_devices_down(records: Records) -> None:
    bad = record(None, outcome=Outcome.QUARANTINED, configuration={"width": 4})
    records.add([record(), record(None), bad])
    assert records.quarantined(KEY.workload, KEY.target) == {'{"width":4}'}
    assert records.quarantined(KEY.workload, "ea") == set()


@pytest.mark.parametrize("value", [None, 0.0, -1.0, float("inf"), float("nan")])
def test_record_without_a_value_is_not_ok(value: float | None) -> None:
    with pytest.raises(InvalidInput, match="outcome ok"):
        replace(record(1.0), value=value)


def _write(path: Path, number: int, count: int) -> None:
    with Records(path) as opened:
        for index in range(count):
            opened.add([record(run=f"{number}-{index}")], workloads_=[WORKLOAD])


def test_processes_that_open_and_write_at_once_are_never_told_that_it_is_locked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tune.db"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_write, args=(path, number, 12)) for number in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * 4
    with Records(path) as opened:
        assert len(opened.under(KEY)) == 48


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_export_and_import_give_the_same_records(
    records: Records, tmp_path: Path, suffix: str
) -> None:
    winner = Winner(KEY, "llvm 1", {"width": 8}, "", 2.0, "ns")
    records.add([record(), record(None)], workloads_=[WORKLOAD], winners_=[winner])
    path = tmp_path / f"out{suffix}"
    assert export_records(records, path) == 2
    with Records(tmp_path / "other.db") as other:
        assert import_records(other, path) == 2
        assert import_records(other, path) == 0
        assert list(other.find()) == list(records.find())
        assert list(other.winners()) == [winner]
        assert other.workloads() == [WORKLOAD]


LINES = ['{"kernel_farm_records":1}']
WINNER = Winner(KEY, "llvm 1", {"width": 8}, "", 2.0, "ns")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "empty"),
        (["no json"], "1: no JSON"),
        (['{"other": 1}'], "no records of kernel-farm"),
        (['{"kernel_farm_records": 3}'], "version 3"),
        (['{"kernel_farm_records": true}'], "version True"),
        ([*LINES, "[" * 100_000], "2: no JSON"),
        ([*LINES, '{"thing": {}}'], "2: neither"),
        ([*LINES, '{"record": {}}'], "2: record: has fields"),
        ([*LINES, '{"record": 3}'], "2: record: has fields none"),
        ([*LINES, '{"workload": {"id": "x", "name": "n", "code": "!"}}'], "no function"),
        ([*LINES, '{"workload": {"id": 3, "name": "n", "code": ""}}'], "bad id"),
        (
            [*LINES, json.dumps({"workload": {"id": "x", "name": "n", "code": "AAAA"}})],
            "no function",
        ),
        ([*LINES, json.dumps({"record": record().to_plain()})], "which is not in it"),
        (
            [*LINES, json.dumps({"record": {**record().to_plain(), "outcome": "great"}})],
            "unknown outcome",
        ),
        ([*LINES, json.dumps({"record": {**record().to_plain(), "wall": True}})], "bad wall"),
        (
            [*LINES, json.dumps({"record": {**record().to_plain(), "configuration": {"a": []}}})],
            "bad configuration",
        ),
        *[
            ([*LINES, json.dumps({"record": {**record().to_plain(), **changes}})], message)
            for changes, message in (
                ({"value": 10**400}, "bad value"),
                ({"wall": 1e301}, "bad wall"),
                ({"clock": "\ud800"}, "bad clock"),
                ({"configuration": {"a": float("nan")}}, "bad configuration"),
                ({"samples": {"wall_ns": ["1"]}}, "bad samples"),
                ({"samples": {"wall_ns": [1, float("nan")]}}, "bad samples"),
                ({"samples": {"calls": 0}}, "bad samples"),
                ({"samples": {"observed": {"cycles": "many"}}}, "bad samples"),
                ({"statistics": {"high": "x"}}, "bad statistics"),
                ({"statistics": {"low": None}}, "bad statistics"),
                ({"fingerprint": {"cpu": 3}}, "bad fingerprint"),
                ({"phases": {"time": [1]}}, "bad phases"),
            )
        ],
        *[
            ([*LINES, json.dumps({"winner": {**WINNER.to_plain(), **changes}})], message)
            for changes, message in (
                ({"ratio": 0}, "bad ratio"),
                ({"high": -1.0}, "bad high"),
                ({"value": 0.0}, "bad value"),
                ({"trace": "{}"}, "trace: no object"),
            )
        ],
    ],
)
def test_import_of_anything_else_is_refused_with_its_line(
    records: Records, tmp_path: Path, lines: list[str], message: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(InvalidInput, match=message):
        import_records(records, path)
    assert list(records.find()) == records.workloads() == []


@pytest.mark.parametrize("column", [[None], [3], ["no json"], ["[" * 100_000]])
def test_import_of_parquet_with_something_else_in_it_is_refused(
    records: Records, tmp_path: Path, column: list[object]
) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs kernel-farm[parquet]")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"kind": ["record"], "plain": column})
    marked = table.replace_schema_metadata({"kernel_farm_records": "1"})
    parquet.write_table(marked, tmp_path / "in.parquet")
    with pytest.raises(InvalidInput, match="no records in Parquet"):
        import_records(records, tmp_path / "in.parquet")


@pytest.mark.parametrize("name", ["tune.db", "link.jsonl", "link.parquet"])
def test_export_over_the_database_itself_is_refused(
    records: Records, tmp_path: Path, name: str
) -> None:
    records.add([record()])
    if name != "tune.db":
        (tmp_path / name).symlink_to("tune.db")
    with pytest.raises(InvalidInput, match="name another file"):
        export_records(records, tmp_path / name)
    assert records.under(KEY) == [record()]


def test_export_that_fails_leaves_what_was_there(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    records.add([record()], workloads_=[WORKLOAD])
    monkeypatch.setattr(Record, "to_plain", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_records(records, path)
    assert path.read_text() == "old"


def test_database_that_may_only_be_read_is_read_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "odd ?name#.db"
    with Records(path) as opened:
        opened.add([record()], workloads_=[WORKLOAD])
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda where, mode: not mode & os.W_OK and access(where, mode)
    )
    with Records(path, create=False) as shown:
        assert shown.under(KEY) == [record()]
        with pytest.raises(InvalidInput, match="may only be read; correct its rights"):
            shown.add([record(run="another")])
    assert [it.name for it in tmp_path.iterdir()] == [path.name]


def test_import_of_a_file_that_is_no_parquet_is_refused(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(InvalidInput, match="no records in Parquet"):
        import_records(records, path)


@given(st.binary(max_size=200))
def test_import_of_random_bytes_never_fails_otherwise(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        path.write_bytes(b'{"kernel_farm_records":1}\n' + data)
        with path.open("rb") as file, contextlib.suppress(InvalidInput):
            list(_read_lines(path, file))


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b'{"kernel_farm_records":1}\n',
        b"not a database at all" * 100,
        b"SQLite format 3\0" + b"x" * 5000,
    ],
)
def test_damaged_file_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.db"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"bad\.db: cannot be used"):
        Records(path)
    assert path.read_bytes() == content


def test_what_is_no_file_is_no_database(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path(os.devnull)):
        with pytest.raises(InvalidInput, match="no regular file"):
            Records(path)


def test_file_that_is_damaged_later_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tune.db"
    with Records(path) as opened:
        opened.add([record(run=str(n)) for n in range(200)])
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 64):
        data[at : at + 32] = b"\xff" * min(32, len(data) - at)
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"tune\.db: cannot be used"), Records(path) as opened:
        list(opened.find())


def test_databases_of_others_and_of_the_future_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tune.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE things (x)")
    raw.close()
    with pytest.raises(InvalidInput, match="another program"):
        Records(path)
    newer = tmp_path / "newer.db"
    Records(newer).close()
    with sqlite3.connect(newer) as raw:
        raw.execute(f"PRAGMA user_version = {database_module.VERSION + 1}")
    raw.close()
    with pytest.raises(InvalidInput, match="newer kernel-farm"):
        Records(newer)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        Records(tmp_path / "none.db", create=False)
    with pytest.raises(InvalidInput, match="folder does not exist"):
        Records(tmp_path / "none" / "tune.db")


def test_build_applies_the_best_record_for_its_target_when_asked(records: Records) -> None:
    plain = function("mine")
    template = template_for(plain, X86)
    schedule = template.schedule({"relu_width": 16})
    trace = schedule.trace.to_json()
    records.add(winners_=[Winner(KEY, "llvm 1", {"relu_width": 16}, trace, 2.0, "ns")])
    arm = "llvm -mtriple=aarch64-linux-gnu"
    work = plan({X86: [plain], arm: [plain]}, variants=True, tuned=records)
    tuned = {str(item.target): item.function for item in work.items}
    assert "vectorized" in str(tuned[str(Target.parse(X86))])
    assert tuned[str(Target.parse(arm))] == plain
    assert tuned[str(Target.parse(X86))].name == "mine"
    x = np.linspace(-1, 1, 70, dtype=np.float32)
    for each in tuned.values():
        np.testing.assert_array_equal(interpret(each, [x])[0], np.maximum(x, 0))


def test_transactions_of_readers_do_not_hold_writers_up(records: Records) -> None:
    records.add([record()])
    with records._reading.connect() as reader, sqlite3.connect(records.path, timeout=0) as writer:
        assert reader.execute(sa.select(database_module.records)).first() is not None
        writer.execute("BEGIN IMMEDIATE")  # at once, or it would be told that it is locked
        assert len(records.under(KEY)) == 1
        with Records(records.path, create=False) as another:
            assert len(another.under(KEY)) == 1
        writer.rollback()
    writer.close()
    assert records.add([record(run="another")]) == 1
