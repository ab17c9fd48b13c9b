"""Jobs: what becomes of them, of their results and of their logs."""

from __future__ import annotations

import asyncio
import itertools

import grpc
import pytest
from tracker_ends.jobs import FAIL, PASS, Gate, endings, refused, states, until

from farm.api.v1 import job_pb2
from farm.errors import (
    InvalidInput,
    KernelCrashed,
    NobodyCanServe,
    NotFound,
)
from farm.rpc import error_from_rpc


def test_job_runs_and_shows_its_result_and_attempts(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("agent", device_ids=("dev0",))
            accepted = await farm.client.submit(values=b"\1\2", client_key="k", priority=3)
            assert not accepted.existed
            seen = await farm.client.wait(accepted.job_id)
            job = seen[-1]
            assert endings(job) == PASS
            assert [it.inline for it in job.result.outputs] == [b"\2\4"]
            assert (states(job), job.attempts[0].device_id) == (["DONE"], "dev0")
            assert (job.account, job.client_key, job.priority) == ("local", "k", 3)
            assert 0 < job.submitted_at <= job.attempts[0].started_at <= job.ended_at
            assert await farm.client.job(accepted.job_id) == job
            await until(lambda: peer.runs == {})
            assert peer.performed == [f"{accepted.job_id}.1"]
            (listed,) = (
                await farm.client.jobs.ListJobs(job_pb2.ListJobsRequest(include_terminal=True))
            ).jobs
            assert (listed.job_id, len(listed.run.inputs), len(listed.result.outputs)) == (
                job.job_id,
                0,
                0,
            )
            assert not (await farm.client.jobs.ListJobs(job_pb2.ListJobsRequest())).jobs

    run_async(body)


def test_job_that_crashes_is_a_verdict_and_runs_once(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:

            async def crash(task):
                return KernelCrashed("twice: SIGSEGV")

            peer = await farm.peer("agent", device_ids=("dev0",), perform=crash)
            accepted = await farm.client.submit()
            job = (await farm.client.wait(accepted.job_id))[-1]
            assert (endings(job), job.error.code, states(job)) == (FAIL, "KERNEL_CRASHED", ["DONE"])
            assert len(peer.performed) == 1

    run_async(body)


def test_job_submitted_twice_or_at_the_same_time_is_one_job(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("agent", device_ids=("dev0", "dev1"))
            answers = await asyncio.gather(*(farm.client.submit(client_key="k") for _ in range(8)))
            assert len({it.job_id for it in answers}) == 1
            assert sorted(it.existed for it in answers) == [False] + [True] * 7
            await farm.client.wait(answers[0].job_id)
            again = await farm.client.submit(client_key="k")
            assert (again.job_id, again.existed) == (answers[0].job_id, True)
            with refused(InvalidInput):
                await farm.client.submit(client_key="k", values=b"\3")
            assert len(peer.performed) == 1

    run_async(body)


def test_job_that_is_malformed_is_refused(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            good = job_pb2.SubmitRequest(run=job_pb2.RunSpec(symbol="f"))
            with refused(InvalidInput):
                await farm.client.jobs.Submit(good)
            absent = job_pb2.RunSpec(symbol="f")
            absent.artifact.sha256, absent.artifact.size_bytes = "0" * 64, 1
            with refused(NotFound):
                await farm.client.jobs.Submit(job_pb2.SubmitRequest(run=absent))
            for options in (
                {"priority": 101},
                {"limit_s": 495.1},
                {"limit_s": float("nan")},
                {"queue_limit_s": -1.0},
                {"client_key": "k" * 129},
            ):
                with refused(InvalidInput):
                    await farm.client.submit(**options)
            for selector in ("a=b=c", "Bad"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await farm.client.submit(selector)
                assert error_from_rpc(caught.value).code == "INVALID_SELECTOR"
            with refused(NobodyCanServe):
                await farm.client.submit("arch=none")
            with refused(NotFound):
                await farm.client.job("job-none")
            assert farm.server.tracker.state.run_jobs == {}

    run_async(body)


def test_job_of_an_agent_that_goes_away_is_tried_elsewhere(start_farm, forgetful, run_async):
    async def body() -> None:
        async with start_farm(limits=forgetful) as farm:
            gate = Gate()
            first = await farm.peer("a", device_ids=("dev0",), perform=gate)
            accepted = await farm.client.submit()
            await gate.started.wait()
            second = await farm.peer("b", device_ids=("dev1",))
            await first.stop()
            job = (await farm.client.wait(accepted.job_id))[-1]
            assert (endings(job), states(job)) == (PASS, ["LOST", "DONE"])
            assert [it.device_id for it in job.attempts] == ["dev0", "dev1"]
            assert len(second.performed) == 1

    run_async(body)


def test_job_that_takes_two_devices_down_is_poisoned(start_farm, forgetful, run_async):
    async def body() -> None:
        async with start_farm(limits=forgetful) as farm:
            peers = {}

            def killer(agent_id):
                async def kill(task):
                    asyncio.get_running_loop().call_soon(
                        lambda: asyncio.ensure_future(peers[agent_id].stop())
                    )
                    await asyncio.Event().wait()

                return kill

            for index, agent_id in enumerate("abc"):
                peers[agent_id] = await farm.peer(
                    agent_id, device_ids=(f"dev{index}",), perform=killer(agent_id)
                )
            accepted = await farm.client.submit()
            job = (await farm.client.wait(accepted.job_id))[-1]
            assert endings(job) == (
                "JOB_STATE_TERMINAL",
                "OUTCOME_POISONED",
                "VERDICT_UNSPECIFIED",
            )
            assert states(job) == ["LOST", "LOST"]
            assert len({it.device_id for it in job.attempts}) == 2

    run_async(body)


def test_job_result_of_an_outbox_is_taken_from_the_next_process(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            gate = Gate()
            first = await farm.peer("a", "p1", device_ids=("dev0",), perform=gate)
            accepted = await farm.client.submit()
            await gate.started.wait()
            (report,) = first.runs.values()
            report.result.target = "kept"
            outbox = {report.attempt_id: report}
            second = await farm.peer("a", "p2", device_ids=("dev0",), runs=outbox)
            job = (await farm.client.wait(accepted.job_id))[-1]
            assert (endings(job), states(job), job.result.target) == (PASS, ["DONE"], "kept")
            await until(lambda: second.runs == {})

    run_async(body)


def test_job_log_comes_without_gap_and_resumes_anywhere(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            gate = Gate()
            peer = await farm.peer("a", device_ids=("dev0",), perform=gate)
            job_id = (await farm.client.submit()).job_id
            await gate.started.wait()
            stream = farm.client.jobs.Logs(job_pb2.LogsRequest(job_id=job_id), timeout=60)
            await peer.log(f"{job_id}.1", b"one")
            assert (await stream.read()).data == b"one"
            await peer.log(f"{job_id}.1", b"two", b"three")
            assert [(await stream.read()).data for _ in range(2)] == [b"two", b"three"]
            peer.runs[f"{job_id}.1"].log_truncated = True
            gate.go.set()
            last = await stream.read()
            assert (last.number, last.data, last.truncated) == (4, b"", True)
            assert await stream.read() is grpc.aio.EOF
            rest = farm.client.jobs.Logs(job_pb2.LogsRequest(job_id=job_id, from_chunk=2))
            assert [(it.number, it.data) async for it in rest] == [
                (2, b"two"),
                (3, b"three"),
                (4, b""),
            ]
            assert (await farm.client.job(job_id)).log_chunks == 4

    run_async(body)


def test_job_is_cancelled_while_it_waits_and_while_it_runs(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            gate = Gate()
            peer = await farm.peer("a", device_ids=("dev0",), perform=gate)
            running = (await farm.client.submit()).job_id
            waiting = (await farm.client.submit()).job_id
            await gate.started.wait()
            for job_id in (waiting, running):
                cancel = job_pb2.CancelRequest(job_id=job_id, reason="wrong one")
                job = await farm.client.jobs.Cancel(cancel)
                assert endings(job) == (
                    "JOB_STATE_TERMINAL",
                    "OUTCOME_CANCELLED",
                    "VERDICT_UNSPECIFIED",
                )
                assert "wrong one" in job.error.message
                assert await farm.client.jobs.Cancel(cancel) == job
            await until(lambda: farm.server.tracker.state.devices["dev0"].is_free)
            assert (peer.runs, len(peer.performed)) == ({}, 1)

    run_async(body)


def test_job_that_is_to_end_when_unwatched_does_and_a_watched_one_stays(start_farm, run_async):
    async def body() -> None:
        async with start_farm(limits={"unwatched_s": 30.0}) as farm:
            gate = Gate()
            await farm.peer("a", device_ids=("dev0",), perform=gate)
            job_id = (await farm.client.submit(cancel_when_unwatched=True, limit_s=400.0)).job_id
            stream = farm.client.jobs.Wait(job_pb2.WaitRequest(job_id=job_id))
            assert (await stream.read()).job_id == job_id
            await gate.started.wait()
            await farm.pass_time(31.0)
            job = farm.server.tracker.state.run_jobs[job_id]
            assert (job.is_open, job.unwatched_until) == (True, None)
            stream.cancel()
            await until(lambda: farm.server.tracker.state.run_jobs[job_id].unwatched_until)
            assert farm.server.tracker.state.run_jobs[job_id].is_open
            await farm.pass_time(31.0)
            assert endings(await farm.client.job(job_id))[1] == "OUTCOME_CANCELLED"

    run_async(body)


def test_large_inputs_of_a_job_become_blobs(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            values = bytes(itertools.islice(itertools.cycle(range(100)), 64 << 10))
            job_id = (await farm.client.submit(values=values, wait_for_device=True)).job_id
            (tensor,) = (await farm.client.job(job_id)).run.inputs
            assert tensor.WhichOneof("content") == "blob"
            assert len(farm.server.tracker.state.run_jobs[job_id].run) < 500
            assert tensor.blob.size_bytes == len(values)

    run_async(body)
