"""Tuning on a farm of processes: what wins is right, is used, and nothing is measured twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import farm
from farm import te
from farm.client.measuring import Candidate
from farm.tune import Records
from farm.tune.measurer import FarmMeasurer

CPU = "kind=cpu,emulator!=qemu-user"
FARM = [sys.executable, "-c", "from farm.cli.main import main; main()"]
WAIT_S = 250
KERNELS = """\
from farm import ops, te

a, b = te.placeholder((24, 32), name="a"), te.placeholder((32, 32), name="b")
x, w = te.placeholder((48, 40), "int8", name="x"), te.placeholder((40, 32), "int8", name="w")
functions = [
    te.function("product", [a, b, ops.matmul(a, b)]),
    te.function("layer", [x, w, ops.matmul(x, w)]),
]
"""


@pytest.fixture
def run(tmp_path, embedded_farm):
    """Run a command line in a process of its own, in a folder with kernels.py; return its JSON."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    environment = {**os.environ, "FARM_TRACKER": embedded_farm.address}

    def start(*arguments):
        if arguments[0] == "tune":
            arguments += ("--decide", "1s", "--no-ceilings")
        command = [*FARM, *map(str, arguments), "-o", "json"]
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def finish(*arguments, code=0):
        out, err = start(*arguments).communicate(timeout=WAIT_S)
        found = json.loads(out)
        assert "error" not in found or code, (out, err)
        return found

    finish.start = start
    return finish


def configurations(path: Path) -> Counter:
    """Return how often each configuration of each workload was recorded so far."""
    query = "SELECT workload, configuration FROM records WHERE template NOT LIKE 'ceil%'"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as raw:
            return Counter(raw.execute(query).fetchall())
    except sqlite3.OperationalError:  # it does not exist yet
        return Counter()


def test_tuned_kernel_is_built_from_the_records_and_computes_the_same(run, tmp_path, embedded_farm):
    found = run(
        *("tune", "kernels.py", "--function", "product", "--devices", CPU),
        *("--trials", 6, "--records", "tune.db"),
    )
    (workload,) = found["workloads"]
    assert found["measured"] == workload["trials"] == 6
    assert workload["outcomes"].get("ok", 0) >= 1
    assert workload["winner"] is not None
    assert workload["unit"] == "ns"
    with Records(tmp_path / "tune.db") as records:
        for record in records.find(workload=records.winners().__next__().key.workload):
            assert record.outcome.value not in ("ok",) or (record.checked and record.samples)
    run(
        "build",
        "kernels.py",
        "--target",
        workload["target"],
        "--tuned",
        "tune.db",
        "--out",
        "t.farm",
    )
    rng = np.random.default_rng(0)
    a, b = rng.random((24, 32), np.float32), rng.random((32, 32), np.float32)
    with farm.connect(embedded_farm.address) as client, client.acquire(CPU) as session:
        result = session.load(tmp_path / "t.farm")["product"](a, b)
    np.testing.assert_allclose(result, a @ b, rtol=1e-4)


def test_accelerator_is_tuned_in_cycles(run, tmp_path):
    found = run(
        *("tune", "kernels.py", "--function", "layer", "--devices", "kind=ea"),
        *("--trials", 5, "--records", "ea.db"),
    )
    (workload,) = found["workloads"]
    outcomes = workload["outcomes"]  # what is far behind the best is given up, and recorded as slow
    assert outcomes.keys() <= {"ok", "slow"}
    assert sum(outcomes.values()) == 5
    assert workload["unit"] == "cycles"
    assert workload["winner"]["value"] <= workload["default"]


def stopped(run, arguments, path, known, how):
    """Start a tuning, end it by a signal when so many trials are recorded, return its code and output."""
    child = run.start(*arguments)
    try:
        deadline = time.monotonic() + WAIT_S
        while sum(configurations(path).values()) < known and time.monotonic() < deadline:
            assert child.poll() is None, child.stderr.read()
            time.sleep(0.02)
    finally:
        child.send_signal(how)
        out, _ = child.communicate(timeout=WAIT_S)
    return child.returncode, out


def test_interrupted_and_killed_tuner_is_resumed_and_measures_nothing_twice(run, tmp_path):
    arguments = ("tune", "kernels.py", "--function", "product", "--devices", CPU)
    arguments += ("--trials", 12, "--records", "killed.db", "--resume")
    path = tmp_path / "killed.db"
    code, out = stopped(run, arguments, path, 2, signal.SIGINT)
    assert code == 130
    told = json.loads(out)
    assert told["interrupted"]
    recorded = sum(configurations(path).values())  # a trial is recorded before it is counted
    assert recorded - 1 <= told["measured"] <= recorded
    code, _ = stopped(run, arguments, path, recorded + 2, signal.SIGKILL)
    assert code == -signal.SIGKILL
    before = configurations(path)
    assert 4 <= sum(before.values()) < 12
    found = run(*arguments)
    after = configurations(path)
    assert found["trials"] == 12
    assert found["measured"] == 12 - sum(before.values())
    assert set(after.values()) == {1}
    assert len(after) == 12
    assert before.keys() <= after.keys()


def test_devices_of_several_kinds_are_not_mixed(run):
    refused = run("tune", "kernels.py", "--function", "layer", "--trials", 2, code=2)
    assert refused["error"]["code"] == "INVALID_INPUT"
    assert "several kinds" in refused["error"]["message"]
    nobody = run("tune", "kernels.py", "--devices", "kind=none", code=7)
    assert nobody["error"]["code"] == "NOBODY_CAN_SERVE"


def test_wrong_numbers_never_count(embedded_farm):
    x = te.placeholder((64,), name="x")
    right = te.function("scale", [x, te.compute((64,), lambda i: x[i] * 2.0, name="y")])
    wrong = te.function("scale", [x, te.compute((64,), lambda i: x[i] * 2.5, name="y")])
    with farm.connect(embedded_farm.address) as client:
        measurer = FarmMeasurer(client, CPU)
        from farm.target import Target
        from farm.tune.measurer import Subject

        subject = Subject(right, Target.parse("llvm"))
        candidates = [Candidate(name, each, "llvm") for name, each in (("a", right), ("b", wrong))]
        found = {
            each.candidate.key: each.status.value
            for each in measurer.measure(subject, candidates, None)
        }
    assert found == {"a": "ok", "b": "wrong"}
