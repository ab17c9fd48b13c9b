"""``farm records`` and ``farm report``: what they show, write and refuse."""

from __future__ import annotations

import pytest
from unit.tune.landscapes import Landscape

import farm.ops as ops
import farm.te as te
from farm.tune.records import Records
from farm.tune.tuning import tune

KERNELS = """\
from farm import ops, te

x = te.placeholder((4096,), name="x")
functions = [te.function("layer", [x, ops.relu(x)])]
"""


@pytest.fixture
def database(tmp_path):
    x = te.placeholder((4096,), name="x")
    function = te.function("layer", [x, ops.relu(x)])
    path = tmp_path / "tune.db"
    with Records(path) as records:
        tune(function, Landscape(lambda f: float(len(str(f)))), trials=4, records=records)
    return path


def test_list_shows_a_line_for_each_workload(cli, database):
    ended = cli("records", "list", database, "-o", "json")
    assert ended.code == 0
    first = ended.json["groups"][0]
    assert (first["name"], first["trials"], first["outcomes"]) == ("layer", 4, {"ok": 4})
    text = cli("records", "list", database).out
    assert "layer" in text.splitlines()[1]


def test_best_shows_the_schedule(cli, database):
    ended = cli("records", "best", database, "--workload", "layer", "-o", "json")
    (winner,) = ended.json["winners"]
    assert set(winner["configuration"]) == {"relu_width"}
    assert "sch.vectorize" in cli("records", "best", database).out
    unknown = cli("records", "best", database, "--workload", "other", "-o", "json")
    assert (unknown.code, unknown.error["code"]) == (2, "NOT_FOUND")
    assert "layer" in unknown.error["message"]


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_export_and_import_pass_records_on(cli, database, tmp_path, name):
    exported = cli("records", "export", database, "--out", name, "-o", "json")
    assert exported.json == {"path": name, "records": 6}
    assert cli("records", "import", "other.db", name, "-o", "json").json["new"] == 6
    assert cli("records", "import", "other.db", name, "-o", "json").json["new"] == 0
    assert cli("records", "list", "other.db").out == cli("records", "list", database).out


def test_report_writes_a_page(cli, database, tmp_path):
    ended = cli("report", database, "--out", "page.html", "--title", "mine")
    assert (ended.code, ended.out) == (0, "page.html\n")
    assert "<title>mine</title>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("command", [("records", "export"), ("report",)])
def test_database_is_never_written_over(cli, database, command):
    ended = cli(*command, database, "--out", database, "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "INVALID_INPUT")
    assert cli("records", "list", database).code == 0


@pytest.mark.parametrize("command", [("records", "list"), ("records", "best"), ("report",)])
def test_file_that_is_no_database_is_refused(cli, tmp_path, command):
    (tmp_path / "bad.db").write_bytes(b"no database" * 100)
    ended = cli(*command, "bad.db")
    assert ended.code == 2
    assert "bad.db: cannot be used" in ended.err
    assert cli(*command, "missing.db").code == 2


def test_build_takes_the_best_schedule_when_asked(cli, database, tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    from farm.target import Target

    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"
    for name, more in (("plain", ()), ("tuned", ("--tuned", database))):
        out = f"{name}.farm"
        ended = cli("build", "kernels.py", "--local", "--target", target, "--out", out, *more)
        assert ended.code == 0, ended.err
    assert (tmp_path / "plain.farm").read_bytes() != (tmp_path / "tuned.farm").read_bytes()
    assert str(Target.parse(target)) == target
