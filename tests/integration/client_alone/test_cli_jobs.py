"""The commands for jobs, against a server whose jobs go on when the test says so."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from farm.api.v1 import job_pb2
from farm.errors import Cancelled, FarmError, InvalidInput, KernelCrashed, NobodyCanServe, TimeLimit

LIMIT_S = 120
FARM = [sys.executable, "-c", "from farm.cli.main import main; main()"]
JOB_KEYS = {
    *("job_id", "client_key", "account", "priority", "state", "outcome", "verdict", "selector"),
    *(
        "function",
        "candidates",
        "artifact",
        "repeat",
        "limit_s",
        "submitted_at",
        "ended_at",
        "log_chunks",
    ),
    *("error", "attempts"),
}


@pytest.fixture
def submitted(cli, saved):
    """The id of a job that waits."""
    ended = cli("submit", saved, "double", "--random", "1", "--device", "kind=cpu", "--key", "k")
    assert ended.code == 0, ended.err
    return ended.out.strip()


@pytest.fixture
def started(tracker, tmp_path):
    """Start a command as a process of its own."""
    processes = []

    def start(*arguments):
        process = subprocess.Popen(
            [*FARM, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "FARM_TRACKER": tracker.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT_S)


def test_submit_prints_the_id_alone_and_how_to_wait(cli, saved, tracker):
    ended = cli("submit", saved, "double", "--random", "1")
    assert (ended.code, ended.out) == (0, "job-1\n")
    assert ended.err == "`farm wait job-1` waits for it\n"
    assert not tracker.jobs.request.wait_for_device


def test_submit_sends_its_options_and_is_one_job_by_its_key(cli, saved, tracker):
    options = (
        *("--random", "1", "--device", "kind=cpu", "--repeat", "7", "--limit", "2.5"),
        *("--priority", "-5", "--account", "team", "--key", "nightly", "--queue-limit", "60"),
        *("--wait-for-device", "--cancel-when-unwatched"),
    )
    first = cli("submit", saved, "double", *options, "-o", "json")
    assert first.json == {"job_id": "job-1", "client_key": "nightly", "existed": False}
    again = cli("submit", saved, "double", *options, "-o", "json")
    assert again.json == {"job_id": "job-1", "client_key": "nightly", "existed": True}
    request = tracker.jobs.request
    assert (request.run.selector, request.run.repeat, request.run.limit_s) == ("kind=cpu", 7, 2.5)
    assert (request.priority, request.account, request.client_key) == (-5, "team", "nightly")
    assert (request.queue_limit_s, request.wait_for_device) == (60, True)
    assert request.cancel_when_unwatched


@pytest.mark.parametrize(
    "options",
    [
        ("--timeout", "5"),
        ("--cancel-on-interrupt",),
        ("--save", "out"),
        ("--repeat", "10001"),
        ("--limit", "541"),
        ("--limit", "nan"),
        ("--priority", "101"),
        ("--queue-limit", "0"),
        ("--key", "k" * 129),
        ("--device", "="),
        (),
    ],
)
def test_submit_of_what_cannot_be_asks_nobody(cli, saved, tracker, options):
    inputs = ("--random", "1") if options else ()
    assert cli("submit", saved, "double", *inputs, *options, "-o", "json").code == 2
    assert tracker.jobs.submits == 0


def test_submit_that_waits_shows_and_saves_the_result(cli, saved, tracker, later, tmp_path):
    later(lambda: tracker.jobs.told, tracker.jobs.passed, "job-1", (2, 4, 6, 8), (10, 30))
    ended = cli(
        *("submit", saved, "double", "--random", "1", "--repeat", "2", "--wait"),
        *("--save", "out", "-o", "json"),
    )
    assert ended.code == 0, ended.err
    value = ended.json
    assert set(value) == {"job", "function", "target", "device_id", "outputs", "timing"}
    assert set(value["job"]) == JOB_KEYS
    assert (value["function"], value["device_id"]) == ("double", "cpu-1")
    (output,) = value["outputs"]
    assert (output["name"], output["first"], output["path"]) == ("y", [2, 4, 6, 8], "out/y.npy")
    assert value["timing"]["samples_ns"] == [10, 30]
    assert value["timing"]["timing_class"] == "native"
    assert np.load(tmp_path / "out" / "y.npy").tolist() == [2, 4, 6, 8]


OUTCOMES = [
    (job_pb2.OUTCOME_COMPLETED, job_pb2.VERDICT_FAIL, KernelCrashed("k: SIGSEGV; mend"), 1),
    (job_pb2.OUTCOME_COMPLETED, job_pb2.VERDICT_FAIL, InvalidInput("k: no; mend"), 2),
    (job_pb2.OUTCOME_COMPLETED, job_pb2.VERDICT_FAIL, TimeLimit("k: 1 s; raise it"), 4),
    (job_pb2.OUTCOME_TIME_LIMIT, 0, None, 4),
    (job_pb2.OUTCOME_CANCELLED, 0, Cancelled("job: cancelled; -"), 5),
    (job_pb2.OUTCOME_INFRA_FAILED, 0, None, 6),
    (job_pb2.OUTCOME_POISONED, 0, FarmError("job: two devices lost; look at them"), 6),
    (job_pb2.OUTCOME_INFRA_FAILED, 0, NobodyCanServe("s: nobody; -"), 7),
]


@pytest.mark.parametrize(("outcome", "verdict", "error", "code"), OUTCOMES)
def test_wait_ends_with_the_exit_code_of_the_job(
    cli, tracker, submitted, outcome, verdict, error, code
):
    tracker.jobs.failed(submitted, outcome, verdict, error)
    ended = cli("wait", submitted, "-o", "json")
    assert ended.code == code
    assert set(ended.json) == JOB_KEYS
    assert ended.json["state"] == "terminal"
    assert (ended.json["error"] or {}).get("message") == (error.message if error else None)
    assert ended.err.startswith("error: ")
    result = cli("result", submitted, "-o", "json")
    assert (result.code, set(result.json)) == (code, {"error"})


def test_submit_that_waits_ends_with_the_exit_code_of_the_job(cli, saved, tracker, later):
    later(lambda: tracker.jobs.jobs, tracker.jobs.failed, "job-1", *OUTCOMES[0][:3])
    ended = cli("submit", saved, "double", "--random", "1", "--wait", "-o", "json")
    assert (ended.code, set(ended.json)) == (1, {"job"})
    assert "SIGSEGV" in ended.err


def test_wait_shows_where_the_job_is_and_how_it_ended(cli, tracker, submitted, later):
    tracker.jobs.whys[submitted] = job_pb2.WhyResponse(
        reason="waits for kind=cpu", position=2, estimate_s=75
    )
    running, told = job_pb2.JOB_STATE_RUNNING, tracker.jobs.told
    later(lambda: told, tracker.jobs.change, submitted, state=running)
    later(lambda: running in told, tracker.jobs.passed, submitted)
    ended = cli("wait", submitted)
    assert (ended.code, ended.out) == (0, "job-1: completed, pass on cpu-1 after 3.0 s\n")
    assert ended.err.splitlines() == [
        "job-1: queued, place 2, about 1 min 15 s: waits for kind=cpu",
        "job-1: running",
    ]


def test_wait_with_a_timeout_says_that_the_job_goes_on(cli, submitted):
    ended = cli("wait", submitted, "--timeout", "0.3", "-o", "json")
    assert (ended.code, ended.json["error"]["code"]) == (4, "STILL_RUNNING")
    assert submitted in ended.json["error"]["message"]


def test_wait_across_a_restart_of_the_tracker_goes_on(cli, tracker, submitted, later):
    def restart():
        tracker.stop()
        time.sleep(0.3)
        tracker.start()
        tracker.jobs.passed(submitted)

    later(lambda: tracker.jobs.told, restart)
    assert cli("wait", submitted).code == 0


def test_interrupted_wait_leaves_the_job_and_says_how_to_end_it(tracker, submitted, started, until):
    process = started("wait", submitted)
    until(lambda: tracker.jobs.told)
    time.sleep(0.2)  # so that it waits for the next
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (130, "")
    assert "job-1 goes on: `farm wait job-1` waits again, `farm cancel job-1` ends it" in err
    assert tracker.jobs.cancelled == []


@pytest.mark.parametrize("cancels", [True, False])
def test_interrupted_submit_cancels_only_if_told_so(tracker, saved, started, until, cancels):
    options = ("--cancel-on-interrupt",) if cancels else ()
    process = started("submit", saved, "double", "--random", "1", "--wait", *options)
    until(lambda: tracker.jobs.told)
    time.sleep(0.2)  # so that it waits for the next
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert ("job-1 is being cancelled" in err) is cancels
    reason = "interrupted at the command line"
    assert tracker.jobs.cancelled == ([("job-1", reason)] if cancels else [])


def test_result_of_a_job_that_has_not_ended_says_what_to_do(cli, submitted):
    ended = cli("result", submitted)
    assert (ended.code, ended.out) == (4, "")
    assert "--wait" in ended.err
    assert f"farm why {submitted}" in ended.err


def test_result_in_text_names_outputs_and_times(cli, tracker, submitted):
    tracker.jobs.passed(submitted, (2, 4, 6, 8), (1000, 3000))
    lines = cli("result", submitted).out.splitlines()
    assert lines == [
        "job-1: completed, pass on cpu-1 after 3.0 s",
        "double, built for llvm -mtriple=x86_64-linux-gnu -mcpu=generic",
        "  y: int32[4]  min 2, max 8, mean 5",
        "    [2, 4, 6, 8]",
        "  time: median 2.000 us, min 1.000 us, 2 calls (real hardware)",
    ]


def test_result_whose_artifact_and_device_are_gone_numbers_its_outputs(cli, tracker, submitted):
    tracker.jobs.passed(submitted, samples_ns=(5,), device_id="cpu-9")
    del tracker.admin.devices[:]
    tracker.blobs.blobs.clear()
    value = cli("result", submitted, "-o", "json").json
    assert [output["name"] for output in value["outputs"]] == ["output0"]
    assert value["timing"]["timing_class"] == "unspecified"


def test_get_shows_the_job_and_its_attempts(cli, tracker, submitted):
    tracker.jobs.passed(submitted)
    value = cli("get", submitted, "-o", "json").json
    assert set(value) == JOB_KEYS
    assert (value["state"], value["outcome"], value["verdict"]) == ("terminal", "completed", "pass")
    assert (value["function"], value["selector"], value["client_key"]) == (
        "double",
        "kind=cpu",
        "k",
    )
    (attempt,) = value["attempts"]
    assert attempt == {
        "attempt_id": "a-1",
        "device_id": "cpu-1",
        "agent_id": "agent-1",
        "epoch": 7,
        "state": "done",
        "error": None,
        "started_at": 1e9,
        "ended_at": 1e9 + 2,
    }
    text = cli("get", submitted).out
    assert text.startswith("job-1: completed, pass on cpu-1 after 3.0 s\n")
    assert "  device     kind=cpu\n" in text
    header, row = text.splitlines()[-2:]
    assert header.split() == [
        "ATTEMPT",
        "DEVICE",
        "AGENT",
        "EPOCH",
        "STATE",
        "STARTED",
        "TOOK",
        "ERROR",
    ]
    assert row.split()[:5] == ["a-1", "cpu-1", "agent-1", "7", "done"]
    assert row.endswith("2.0 s")


def test_get_shows_errors_without_letting_them_move_the_cursor(cli, tracker, submitted):
    tracker.jobs.failed(
        submitted,
        job_pb2.OUTCOME_COMPLETED,
        job_pb2.VERDICT_FAIL,
        KernelCrashed("k: \x1b[2J died; mend"),
    )
    text = cli("get", submitted).out
    assert "  error      KERNEL_CRASHED: k: \\x1b[2J died; mend\n" in text
    assert cli("get", submitted, "-o", "json").json["error"]["message"] == "k: \x1b[2J died; mend"


def test_job_that_waits_again_is_shown_without_its_former_device(cli, tracker, submitted):
    lost = job_pb2.JobAttempt(
        attempt_id="a-1", device_id="cpu-1", state=job_pb2.ATTEMPT_STATE_LOST, started_at=1e9
    )
    tracker.jobs.change(submitted, attempts=[lost], state=job_pb2.JOB_STATE_RUNNING)
    assert cli("get", submitted).out.startswith("job-1: running on cpu-1\n")
    tracker.jobs.change(submitted, state=job_pb2.JOB_STATE_QUEUED)
    assert cli("get", submitted).out.startswith("job-1: queued, attempts so far: 1\n")
    assert cli("queue").out.splitlines()[1].split()[6] == "kind=cpu"


def test_unknown_job_ends_with_2(cli):
    for command in ("get", "wait", "result", "logs", "cancel", "why"):
        ended = cli(command, "job-99", "-o", "json")
        assert (ended.code, ended.json["error"]["code"]) == (2, "NOT_FOUND"), command


def test_cancel_ends_the_job_and_keeps_the_reason(cli, tracker, submitted):
    ended = cli("cancel", submitted, "--reason", "wrong input")
    assert (ended.code, ended.out) == (0, "job-1: cancelled\n")
    assert tracker.jobs.cancelled == [("job-1", "wrong input")]


def test_why_prints_reason_place_estimate_and_what_keeps_each_device(cli, tracker, submitted):
    tracker.jobs.whys[submitted] = job_pb2.WhyResponse(
        reason="both devices that match are busy",
        position=3,
        estimate_s=130,
        devices={"cpu-2": "drained: new fan", "cpu-1": "runs job-0"},
    )
    assert cli("why", submitted).out.splitlines() == [
        "job-1: both devices that match are busy",
        "  place in the queue  3",
        "  time until it runs  about 2 min 10 s",
        "",
        "DEVICE  WHAT KEEPS IT",
        "cpu-1   runs job-0",
        "cpu-2   drained: new fan",
    ]
    assert cli("why", submitted, "-o", "json").json == {
        "job_id": "job-1",
        "reason": "both devices that match are busy",
        "position": 3,
        "estimate_s": 130,
        "devices": {"cpu-1": "runs job-0", "cpu-2": "drained: new fan"},
    }


def test_why_of_a_running_job_has_neither_place_nor_estimate(cli, submitted):
    assert cli("why", submitted).out == "job-1: it runs\n"
    value = cli("why", submitted, "-o", "json").json
    assert (value["position"], value["estimate_s"], value["devices"]) == (None, None, {})


def test_logs_are_the_kernel_s_bytes_and_json_is_text(tracker, cli, submitted, started):
    tracker.jobs.print(submitted, b"one \xff\x1b[31m\n")
    tracker.jobs.print(submitted, b"two\n", truncated=True)
    value = cli("logs", submitted, "-o", "json").json
    assert value == {
        "job_id": "job-1",
        "chunks": [
            {"number": 1, "text": "one \\xff\x1b[31m\n", "truncated": False, "attempt_id": "a-1"},
            {"number": 2, "text": "two\n", "truncated": True, "attempt_id": "a-1"},
        ],
    }
    process = subprocess.run(
        [*FARM, "logs", submitted],
        env={**os.environ, "FARM_TRACKER": tracker.address},
        capture_output=True,
        timeout=60,
    )
    assert process.stdout == b"one \xff\x1b[31m\ntwo\n"
    assert process.stderr == b"log: cut here, at the job's limit; the rest was dropped\n"


def test_logs_followed_end_with_the_job(tracker, submitted, started, until):
    process = started("logs", submitted, "--follow", "--from", "2")
    for number in range(4):
        tracker.jobs.print(submitted, b"line %d\n" % number)
    until(lambda: tracker.jobs.streams == 1)
    tracker.jobs.print(submitted, b"last\n")
    tracker.jobs.passed(submitted)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, "line 1\nline 2\nline 3\nlast\n")


def test_logs_on_a_terminal_move_no_cursor(tracker, submitted):
    tracker.jobs.print(submitted, b"a\tb\x1b[2J\xff\r\n")
    tracker.jobs.passed(submitted)
    main_end, terminal = pty.openpty()
    process = subprocess.Popen(
        [*FARM, "logs", submitted],
        env={**os.environ, "FARM_TRACKER": tracker.address},
        stdout=terminal,
        stderr=subprocess.DEVNULL,
    )
    assert process.wait(60) == 0
    os.close(terminal)
    shown = os.read(main_end, 1000)
    os.close(main_end)
    assert shown.replace(b"       b", b"\tb") == b"a\tb\\x1b[2J\\xff\\r\r\n"


def test_queue_shows_what_runs_then_places(cli, saved, tracker):
    for priority in (0, 5, 9):
        cli("submit", saved, "double", "--random", "1", "--priority", priority, "--account", "team")
    tracker.jobs.change("job-1", state=job_pb2.JOB_STATE_RUNNING)
    tracker.jobs.whys["job-1"] = job_pb2.WhyResponse(reason="running", estimate_s=0)
    tracker.jobs.whys["job-2"] = job_pb2.WhyResponse(reason="waits", position=2, estimate_s=60)
    tracker.jobs.whys["job-3"] = job_pb2.WhyResponse(reason="next", position=1, estimate_s=-1)
    value = cli("queue", "-o", "json").json
    assert value["total"] == 3
    assert [
        (row["job"]["job_id"], row["position"], row["estimate_s"]) for row in value["jobs"]
    ] == [
        ("job-1", None, 0),
        ("job-3", 1, None),
        ("job-2", 2, 60),
    ]
    lines = cli("queue", "--limit", "2").out.splitlines()
    assert lines[0].split() == [
        *("PLACE", "JOB", "STATE", "PRIORITY", "ACCOUNT", "FUNCTION", "DEVICE", "SINCE", "STARTS"),
        "WHY",
    ]
    assert lines[1].split()[:7] == ["-", "job-1", "running", "0", "team", "double", "any"]
    assert "in about" not in lines[1], "it runs already"
    assert lines[-1] == "and 1 more"
    assert cli("queue", "--account", "nobody").out == "the queue is empty\n"


def test_jobs_lists_newest_first_and_ended_ones_if_asked(cli, saved, tracker):
    for _ in range(2):
        cli("submit", saved, "double", "--random", "1")
    tracker.jobs.passed("job-1")
    assert [job["job_id"] for job in cli("jobs", "-o", "json").json["jobs"]] == ["job-2"]
    lines = cli("jobs", "--all").out.splitlines()
    assert [line.split()[0] for line in lines] == ["JOB", "job-2", "job-1"]
    assert lines[2].split()[:8] == [
        *("job-1", "terminal", "completed", "pass", "double", "cpu-1", "own", "0")
    ]
    tracker.jobs.passed("job-2")
    assert cli("jobs").out == "no jobs that have not ended; --all shows the others\n"
