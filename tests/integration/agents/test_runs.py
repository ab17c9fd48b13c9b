"""Run attempts of an agent over real gRPC: results, faults, logs, and what survives whom."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import numpy as np
import pytest
from farm_agents.printed import CHUNK_BYTES, MAX_LOG_BYTES
from farm_agents.sandbox.cgroups import Hierarchies, own_name

from farm.api.v1 import agent_pb2, device_pb2, tensor_pb2
from farm.core.digest import digest_of
from farm.core.wire import digest_from_proto


def number(value):
    return tensor_pb2.Tensor(dtype="int32", shape=[1], inline=np.array([value], "<i4").tobytes())


def value_of(attempt):
    (output,) = attempt.result.outputs
    return int(np.frombuffer(output.inline, "<i4")[0])


def log_of(tracker, attempt):
    return b"".join(tracker.blobs.data[digest_from_proto(d)] for d in attempt.log_chunks)


async def kernel_has_begun(tracker):
    """Wait until a kernel that announces itself has done so."""
    await tracker.until(lambda: (it := tracker.run("job.1")) and it.log_chunks)


def outbox_of(spec):
    return sorted(path.name for path in (spec.work_dir / "outbox").iterdir())


def is_kept(work_dir):
    """Whether an agent has the result of the job's run on disk."""
    record = work_dir / "outbox" / "job.1.run"
    return record.exists() and b"llvm" in record.read_bytes()


def test_run_gives_its_result_and_is_forgotten_when_it_is_dropped(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.start_run(hostile, "increment", number(41), repeat=3)
        attempt = await tracker.run_ends("job.1")
        assert (attempt.WhichOneof("outcome"), attempt.epoch) == ("result", 1)
        assert (value_of(attempt), len(attempt.result.samples_ns)) == (42, 3)
        assert attempt.result.target.startswith("llvm ")
        assert 0 < attempt.started_at <= attempt.ended_at
        assert (list(attempt.log_chunks), attempt.log_truncated) == ([], False)
        assert outbox_of(spec) == ["job.1.run"]
        assert tracker.opened == []  # no session with the tracker
        await tracker.want(leases=[], runs=[])
        await tracker.device_is("IDLE", 1)
        await tracker.until(lambda: tracker.run("job.1") is None)
        await tracker.until(lambda: outbox_of(spec) == [])

    run_farm(story)


def test_run_asked_for_again_and_again_runs_once(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.start_run(hostile, "chatter", number(1))
        for _ in range(20):
            await tracker.notify()
            await asyncio.sleep(0.02)
        attempt = await tracker.run_ends("job.1")
        await tracker.notify()
        await tracker.hears(3)
        assert tracker.run("job.1") == attempt
        assert log_of(tracker, attempt) == b"noise\nnoise\n"

    run_farm(story)


def give_all_groups(room_bytes):
    """Give the groups of all children together so much more memory; each may use more than that."""
    (tree,) = [it for it in Hierarchies.find().trees if "memory" in it.controllers]
    folder = tree.base / own_name()
    used, limit = ("memory.usage_in_bytes", "memory.limit_in_bytes")
    if tree.version == 2:
        used, limit = ("memory.current", "memory.max")
    (folder / limit).write_text(str(int((folder / used).read_text()) + room_bytes))


def test_run_that_the_hosts_want_of_memory_kills_is_no_failure_of_its_kernel(run_farm, hostile):
    async def story(tracker, spec):
        labels = (await tracker.device_is_good()).description.labels
        if labels["sandbox"] != "bwrap" or "memory" in labels.get("sandbox-lacks", ""):
            pytest.skip("needs a sandbox with a control group for memory")
        give_all_groups(128 << 20)
        await tracker.start_run(hostile, "eat_memory", number(1))
        error = (await tracker.run_ends("job.1")).error
        assert error.code == "INFRASTRUCTURE", error
        assert "the host ran out of memory" in error.message
        await tracker.start_run(hostile, "increment", number(1), epoch=2)
        assert value_of(await tracker.run_ends("job.2")) == 2

    run_farm(story)


def test_run_that_crashes_says_so_and_the_next_one_works(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.start_run(hostile, "segfault", number(1))
        error = (await tracker.run_ends("job.1")).error
        assert (error.code, error.details["signal"]) == ("KERNEL_CRASHED", "SIGSEGV")
        await tracker.start_run(hostile, "increment", number(1), epoch=2)
        assert value_of(await tracker.run_ends("job.2")) == 2

    run_farm(story)


def test_run_that_hangs_is_killed_at_its_limit_and_nothing_is_left(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.start_run(hostile, "spin", number(1), limit_s=0.5)
        error = (await tracker.run_ends("job.1")).error
        assert (error.code, error.details["limit_s"]) == ("TIME_LIMIT", "0.5")
        await tracker.want(leases=[], runs=[])
        await tracker.device_is("IDLE", 1)

    run_farm(story)


def test_run_that_is_wrong_is_the_users_fault(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.start_run(hostile, "nothing", number(1))
        assert (await tracker.run_ends("job.1")).error.code == "NOT_FOUND"
        await tracker.start_run(hostile, "increment", epoch=2)
        assert (await tracker.run_ends("job.2")).error.code == "INVALID_ARGUMENTS"

    run_farm(story)


def test_run_whose_artifact_is_gone_is_the_farms_fault(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.device_is_good()
        tracker.blobs.put = digest_of  # says so, and keeps nothing
        await tracker.start_run(hostile, "increment", number(1))
        assert (await tracker.run_ends("job.1")).error.code == "INFRASTRUCTURE"

    run_farm(story)


def test_run_whose_lease_is_withdrawn_is_killed(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.start_run(hostile, "announce", number(1))
        await kernel_has_begun(tracker)
        await tracker.want(leases=[])
        assert (await tracker.run_ends("job.1")).error.code == "INFRASTRUCTURE"
        await tracker.device_is("IDLE", 1)

    run_farm(story)


def test_run_of_a_lower_epoch_is_fenced(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.start_run(hostile, "increment", number(1), epoch=5)
        await tracker.run_ends("job.5")
        await tracker.want(leases=[], runs=[])
        await tracker.device_is("IDLE", 5)
        await tracker.start_run(hostile, "increment", number(1), epoch=4)
        assert (await tracker.run_ends("job.4")).error.code == "FENCED"
        assert tracker.device().use == device_pb2.USE_IDLE

    run_farm(story)


def test_run_that_is_malformed_is_left_out_and_the_rest_counts(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.start_run(hostile, "increment", number(1))
        bad = agent_pb2.RunTask(attempt_id="../x", epoch=1, lease_id="l", device_id="a1-cpu")
        late = agent_pb2.RunTask(attempt_id="late", epoch=0, lease_id="l", device_id="a1-cpu")
        await tracker.want(runs=[bad, late, *tracker.runs])
        assert value_of(await tracker.run_ends("job.1")) == 2
        assert [it.attempt_id for it in tracker.states["a1"].runs] == ["job.1"]

    run_farm(story)


def test_run_that_floods_its_log_is_cut_with_a_mark_and_still_counts(run_farm, hostile):
    async def story(tracker, spec):
        lines = MAX_LOG_BYTES // 6 + 50_000
        await tracker.start_run(hostile, "flood", number(lines), limit_s=300)
        live = await tracker.until(lambda: (it := tracker.run("job.1")) and it.log_chunks and it)
        assert log_of(tracker, live).startswith(b"noise\n" * 10)
        attempt = await tracker.run_ends("job.1")
        assert (value_of(attempt), attempt.log_truncated) == (lines + 1, True)
        assert all(d.size_bytes <= CHUNK_BYTES for d in attempt.log_chunks)
        whole = b"noise\n" * (MAX_LOG_BYTES // 6 + 1)
        assert log_of(tracker, attempt) == whole[:MAX_LOG_BYTES]

    run_farm(story)


def test_run_that_ends_while_the_tracker_is_away_is_told_when_it_is_back(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.start_run(hostile, "chatter", number(41))
        name = digest_of(hostile.to_bytes()).sha256
        await tracker.until(lambda: list((spec.work_dir / "cache").rglob(name)))  # all it needs
        await tracker.stop()
        tracker.states.clear()
        await tracker.until(lambda: is_kept(spec.work_dir))
        await tracker.start()
        attempt = await tracker.run_ends("job.1")
        assert (value_of(attempt), log_of(tracker, attempt)) == (42, b"noise\nnoise\n")
        assert tracker.states["a1"].instance_id

    run_farm(story)


def test_run_is_adopted_by_a_tracker_that_restarts_and_not_run_again(run_farm, hostile, tree):
    async def story(tracker, spec):
        await tracker.start_run(hostile, "announce", number(1))
        await kernel_has_begun(tracker)
        before = tree.workers()
        await tracker.stop()
        tracker.states.clear()
        await tracker.start()
        await tracker.until(lambda: (it := tracker.run("job.1")) and it.running)
        await tracker.hears(3)
        assert tracker.run("job.1").running
        assert tree.workers() == before
        await tracker.want(leases=[])
        attempt = await tracker.run_ends("job.1")
        assert attempt.error.code == "INFRASTRUCTURE"
        assert log_of(tracker, attempt) == b"noise\n"  # once, though two trackers wanted it

    run_farm(story)


def test_result_survives_an_agent_killed_between_the_run_and_its_report(
    make_tracker, tmp_path, hostile
):
    """The tracker's store refuses all blobs, so that the kernel has ended and the result cannot be told."""

    async def main():
        tracker = make_tracker()
        real = tracker.blobs.FindMissing

        async def refuse(request, context):
            if tracker.refuses:
                await context.abort(14, "away")
            return await real(request, context)

        tracker.refuses = True
        tracker.blobs.FindMissing = refuse
        await tracker.start()
        first = await start_agent(tracker, tmp_path)
        try:
            await tracker.start_run(hostile, "chatter", number(41))
            await tracker.until(lambda: is_kept(tmp_path / "a1"))
            await tracker.until(lambda: tracker.run("job.1"))
            assert tracker.run("job.1").running
        finally:
            first.send_signal(signal.SIGKILL)
            await first.wait()
        before = tracker.states.pop("a1").instance_id
        await tracker.want(leases=[])
        tracker.refuses = False
        second = await start_agent(tracker, tmp_path)
        try:
            await tracker.until(lambda: "a1" in tracker.states)
            # Told with the very first message, as the tracker gives up what the former process held with it.
            attempt = tracker.run("job.1")
            assert (value_of(attempt), log_of(tracker, attempt)) == (42, b"noise\nnoise\n")
            assert tracker.states["a1"].instance_id != before
            await tracker.want(runs=[])
            await tracker.until(lambda: tracker.run("job.1") is None)
        finally:
            second.terminate()
            assert await second.wait() == 0
            await tracker.stop()

    asyncio.run(main())


def test_run_of_an_agent_that_is_killed_meanwhile_is_lost_and_not_run_again(
    make_tracker, tmp_path, hostile
):
    async def main():
        tracker = make_tracker()
        await tracker.start()
        first = await start_agent(tracker, tmp_path)
        try:
            await tracker.start_run(hostile, "spin", number(1))
            await tracker.device_is("LEASED", 1)
            await tracker.until(lambda: (tmp_path / "a1/outbox/job.1.run").exists())
        finally:
            first.send_signal(signal.SIGKILL)
            await first.wait()
        tracker.states.clear()
        second = await start_agent(tracker, tmp_path)  # the tracker still wants the run
        try:
            assert (await tracker.run_ends("job.1")).error.code == "DEVICE_LOST"
        finally:
            second.terminate()
            assert await second.wait() == 0
            await tracker.stop()

    asyncio.run(main())


async def start_agent(tracker, tmp_path):
    environment = os.environ | {"KERNEL_FARM_RUNTIME_DIR": str(tmp_path / "runtime")}
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((tmp_path / "agent.log").open("ab"))
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "farm_agents", "--tracker", f"127.0.0.1:{tracker.port}"),
            *("--agent-id", "a1", "--device", "cpu", "--work-dir", str(tmp_path / "a1")),
            env=environment,
            stdout=log,
            stderr=log,
        )
