"""Jobs through the client, against a server that goes away, breaks streams and loses answers."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from farm.api.v1 import job_pb2
from farm.client import AttemptState, JobState, Outcome, Verdict
from farm.errors import (
    Cancelled,
    FarmError,
    InfrastructureError,
    InvalidInput,
    InvalidSelector,
    KernelCrashed,
    KernelFailed,
    NobodyCanServe,
    NotFound,
    StillRunning,
    TimeLimit,
    TrackerUnreachable,
)

LIMIT_S = 120.0


@pytest.fixture
def job(client, artifact, x):
    return client.submit(artifact, "double", [x])


def test_submit_sends_every_option(client, tracker, artifact, x):
    job = client.submit(
        artifact,
        "double",
        [x],
        selector="kind=cpu, arch",
        repeat=5,
        limit_s=2.5,
        priority=-3,
        account="team",
        client_key="mine",
        wait_for_device=True,
        queue_limit_s=60,
        cancel_when_unwatched=True,
    )
    request = tracker.jobs.request
    assert (job.job_id, job.client_key, job.existed) == ("job-1", "mine", False)
    run = request.run
    assert (run.selector, run.symbol, run.repeat, run.limit_s) == (
        "kind=cpu,arch",
        "double",
        5,
        2.5,
    )
    assert run.artifact.sha256 == artifact.digest.sha256
    assert run.inputs[0].inline == x.tobytes()
    assert (request.client_key, request.priority, request.account) == ("mine", -3, "team")
    assert request.wait_for_device
    assert request.queue_limit_s == 60
    assert request.cancel_when_unwatched


def test_submit_with_a_key_again_is_the_same_job(client, artifact, x):
    first = client.submit(artifact, "double", [x], client_key="k")
    again = client.submit(artifact, "double", [x], client_key="k")
    assert (again.job_id, again.existed) == (first.job_id, True)


def test_submit_without_a_key_is_a_new_job_each_time(client, artifact, x):
    jobs = [client.submit(artifact, "double", [x]) for _ in range(2)]
    assert [job.job_id for job in jobs] == ["job-1", "job-2"]
    assert jobs[0].client_key != jobs[1].client_key


def test_submit_whose_answer_is_lost_is_repeated_and_stays_one_job(client, tracker, artifact, x):
    tracker.jobs.lose_answers = 2
    job = client.submit(artifact, "double", [x])
    assert (tracker.jobs.submits, len(tracker.jobs.jobs)) == (3, 1)
    assert (job.job_id, job.existed) == ("job-1", True)


def test_submit_while_the_tracker_restarts_goes_through(client, tracker, artifact, x, later):
    tracker.stop()
    since = time.monotonic()
    later(lambda: time.monotonic() > since + 0.5, tracker.start)
    assert client.submit(artifact, "double", [x]).job_id == "job-1"


def test_submit_with_a_malformed_selector_asks_nobody(client, tracker, artifact, x):
    with pytest.raises(InvalidSelector):
        client.submit(artifact, "double", [x], selector="=")
    assert tracker.blobs.asked == 0


def test_call_while_the_tracker_stays_away_gives_up(client, tracker, job):
    client.away_s = 0.3
    tracker.stop()
    try:
        with pytest.raises(TrackerUnreachable, match=tracker.address):
            job.status()
    finally:
        tracker.start()


def test_status_is_the_whole_job(client, tracker, artifact, x):
    job = client.submit(artifact, "double", [x], selector="kind=cpu", client_key="k", repeat=2)
    tracker.jobs.passed(job.job_id)
    info = job.status()
    assert (info.job_id, info.client_key, info.account, info.priority) == ("job-1", "k", "own", 0)
    assert (info.state, info.outcome, info.verdict) == (
        JobState.TERMINAL,
        Outcome.COMPLETED,
        Verdict.PASS,
    )
    assert (info.selector, info.symbol, info.repeat, info.limit_s) == ("kind=cpu", "double", 2, 30)
    assert info.artifact == artifact.digest
    (attempt,) = info.attempts
    assert (attempt.attempt_id, attempt.device_id, attempt.agent_id) == ("a-1", "cpu-1", "agent-1")
    assert (attempt.epoch, attempt.state, attempt.error) == (7, AttemptState.DONE, None)
    assert (attempt.started_at, attempt.ended_at) == (1e9, 1e9 + 2)
    assert (info.error, info.submitted_at, info.ended_at) == (None, 1e9, 1e9 + 3)
    assert (info.log_chunks, info.ended, info.failure) == (0, True, None)


def test_job_that_is_unknown_says_so(client):
    job = client.job("job-99")
    for call in (job.status, job.wait, job.why, job.cancel, job.artifact, job.result):
        with pytest.raises(NotFound, match="job-99"):
            call()


def test_wait_tells_each_change_and_ends_with_the_job(tracker, job, later):
    running, told = job_pb2.JOB_STATE_RUNNING, tracker.jobs.told
    later(lambda: told, tracker.jobs.change, job.job_id, state=running)
    later(lambda: running in told, tracker.jobs.passed, job.job_id)
    seen = []
    ended = job.wait(LIMIT_S, progress=seen.append)
    states = [info.state for info in seen]
    assert [state for state, _ in itertools.groupby(states)] == [
        JobState.QUEUED,
        JobState.RUNNING,
        JobState.TERMINAL,
    ]
    assert ended == seen[-1]


def test_wait_across_broken_streams_and_a_restart_ends_with_the_job(tracker, job, later):
    tracker.jobs.break_after = 1
    before = []

    def restart():
        tracker.stop()
        before.append(tracker.jobs.streams)
        tracker.start()

    later(lambda: tracker.jobs.streams >= 2, restart)
    later(
        lambda: before and tracker.jobs.streams > before[0],
        tracker.jobs.passed,
        job.job_id,
    )
    assert job.wait(LIMIT_S).verdict is Verdict.PASS
    assert tracker.jobs.streams > 2


def test_wait_that_is_too_short_says_so_and_the_job_goes_on(job):
    with pytest.raises(StillRunning, match="wait again") as caught:
        job.wait(0.3)
    assert caught.value.exit_code == 4
    assert job.status().state is JobState.QUEUED


def test_wait_that_is_too_short_while_the_tracker_is_away_says_so(tracker, job):
    tracker.stop()
    try:
        with pytest.raises(StillRunning):
            job.wait(0.3)
    finally:
        tracker.start()


def test_result_waits_and_holds_arrays_of_the_caller(tracker, job, later):
    later(lambda: tracker.jobs.told, tracker.jobs.passed, job.job_id, (2, 4, 6, 8), (10, 20))
    result = job.result(LIMIT_S)
    assert result.outputs[0].tolist() == [2, 4, 6, 8]
    assert result.outputs[0].dtype == np.int32
    result.outputs[0][0] = 1
    assert (result.samples_ns, result.device_id) == ((10, 20), "cpu-1")
    assert result.target.startswith("llvm")
    assert result.job.verdict is Verdict.PASS


def test_result_in_the_store_is_fetched(client, tracker, job):
    data = np.arange(1 << 21, dtype=np.int32)
    digest = client._store.put(data.tobytes())
    tracker.jobs.passed(job.job_id)
    (tensor,) = tracker.jobs.jobs[job.job_id].result.outputs
    tensor.blob.sha256, tensor.blob.size_bytes = digest.sha256, digest.size_bytes
    tensor.shape[0] = 1 << 21
    np.testing.assert_array_equal(job.result(LIMIT_S).outputs[0], data)


C, V = job_pb2.OUTCOME_COMPLETED, job_pb2


@pytest.mark.parametrize(
    ("outcome", "verdict", "error", "cls", "exit_code"),
    [
        (C, V.VERDICT_FAIL, KernelCrashed("k: SIGSEGV; mend it"), KernelCrashed, 1),
        (C, V.VERDICT_FAIL, TimeLimit("k: 1 s; raise it"), TimeLimit, 4),
        (C, V.VERDICT_FAIL, InvalidInput("k: wrong; mend it"), InvalidInput, 2),
        (C, V.VERDICT_FAIL, InfrastructureError("k: lost; again"), KernelFailed, 1),
        (C, V.VERDICT_FAIL, None, KernelFailed, 1),
        (C, V.VERDICT_INCONCLUSIVE, None, InfrastructureError, 6),
        (V.OUTCOME_CANCELLED, 0, Cancelled("job: cancelled; -"), Cancelled, 5),
        (V.OUTCOME_CANCELLED, 0, None, Cancelled, 5),
        (V.OUTCOME_TIME_LIMIT, 0, None, TimeLimit, 4),
        (V.OUTCOME_INFRA_FAILED, 0, None, InfrastructureError, 6),
        (V.OUTCOME_INFRA_FAILED, 0, NobodyCanServe("s: none; -"), NobodyCanServe, 7),
        (V.OUTCOME_INFRA_FAILED, 0, KernelCrashed("k: -; -"), InfrastructureError, 6),
        (V.OUTCOME_POISONED, 0, KernelCrashed("k: -; -"), InfrastructureError, 6),
    ],
)
def test_result_of_a_job_that_did_not_pass_raises_by_outcome_and_verdict(
    tracker, job, outcome, verdict, error, cls, exit_code
):
    tracker.jobs.failed(job.job_id, outcome, verdict, error)
    with pytest.raises(FarmError) as caught:
        job.result(LIMIT_S)
    assert type(caught.value) is cls
    assert caught.value.exit_code == exit_code
    if error is not None:
        assert caught.value.message == error.message
        cause = None if isinstance(error, cls) else error.code
        assert caught.value.details.get("cause") == cause


def test_job_in_a_state_of_a_newer_tracker_is_refused(tracker, job):
    tracker.jobs.change(job.job_id, state=17)
    with pytest.raises(InfrastructureError, match="same version"):
        job.status()


def test_logs_follow_to_the_end_without_gap_or_repeat_across_broken_streams(tracker, job, later):
    tracker.jobs.break_after = 2
    tracker.jobs.repeat_chunks = True
    for number in range(5):
        tracker.jobs.print(job.job_id, b"early %d\n" % number)

    def go_on():
        for number in range(5):
            tracker.jobs.print(job.job_id, b"late %d\n" % number)
            time.sleep(0.05)
        tracker.jobs.passed(job.job_id)

    later(lambda: tracker.jobs.streams >= 5, go_on)  # all that was early is told
    chunks = list(job.logs(timeout_s=LIMIT_S))
    assert [chunk.number for chunk in chunks] == list(range(1, 11))
    assert [c.data for c in chunks[:5]] == [b"early %d\n" % number for number in range(5)]
    assert [c.data for c in chunks[5:]] == [b"late %d\n" % number for number in range(5)]
    assert {chunk.attempt_id for chunk in chunks} == {"a-1"}


def test_logs_from_a_chunk_on_start_there(tracker, job):
    for data in (b"a", b"b", b"c"):
        tracker.jobs.print(job.job_id, data, truncated=data == b"c")
    tracker.jobs.passed(job.job_id)
    chunks = list(job.logs(first=2))
    assert [(c.data, c.truncated) for c in chunks] == [(b"b", False), (b"c", True)]


def test_logs_without_following_end_with_what_there_is(tracker, job):
    assert list(job.logs(follow=False)) == []
    tracker.jobs.print(job.job_id, b"a")
    tracker.jobs.print(job.job_id, b"b")
    assert [chunk.data for chunk in job.logs(follow=False)] == [b"a", b"b"]
    assert list(job.logs(follow=False, first=3)) == []


def test_logs_with_a_gap_are_refused(tracker, job):
    for _ in range(3):
        tracker.jobs.print(job.job_id, b"x")
    tracker.jobs.skip_chunk = 2
    with pytest.raises(InfrastructureError, match="chunk 2"):
        list(job.logs())


def test_logs_that_last_too_long_end_with_their_time(tracker, job):
    tracker.jobs.print(job.job_id, b"x")
    logs = job.logs(timeout_s=3.0)
    assert next(logs).data == b"x"
    with pytest.raises(StillRunning):
        next(logs)


def test_cancel_ends_a_job_and_leaves_an_ended_one(client, tracker, job, artifact, x):
    assert job.cancel("no longer needed").outcome is Outcome.CANCELLED
    assert tracker.jobs.cancelled == [("job-1", "no longer needed")]
    other = client.submit(artifact, "double", [x])
    tracker.jobs.passed(other.job_id)
    assert other.cancel().verdict is Verdict.PASS


def test_why_tells_reason_place_estimate_and_devices(tracker, job):
    tracker.jobs.whys[job.job_id] = job_pb2.WhyResponse(
        reason="waits for kind=cpu",
        position=3,
        estimate_s=12.5,
        devices={"b": "busy", "a": "drained"},
    )
    why = job.why()
    assert (why.reason, why.position, why.estimate_s) == ("waits for kind=cpu", 3, 12.5)
    assert list(why.devices.items()) == [("a", "drained"), ("b", "busy")]


def test_why_of_a_job_outside_the_queue_has_no_place_and_no_estimate(job):
    why = job.why()
    assert (why.position, why.estimate_s) == (None, None)


def test_jobs_are_listed_newest_first_by_account(client, tracker, artifact, x):
    for account in ("a", "b", "a"):
        client.submit(artifact, "double", [x], account=account)
    tracker.jobs.passed("job-1")
    assert [job.job_id for job in client.jobs()] == ["job-3", "job-2"]
    assert [job.job_id for job in client.jobs(account="a", include_ended=True)] == [
        "job-3",
        "job-1",
    ]
    assert [job.job_id for job in client.jobs(include_ended=True, limit=1)] == ["job-3"]


def test_artifact_of_a_job_is_fetched(job, artifact):
    assert job.artifact() == artifact


def test_handle_of_another_process_is_made_from_the_id(client, tracker, job):
    tracker.jobs.passed(job.job_id)
    assert client.job(job.job_id).result().outputs[0].tolist() == [1, 2, 3, 4]
