from __future__ import annotations

import asyncio
import contextlib
import itertools

import grpc
import pytest

from farm.api.v1 import admin_pb2, device_pb2, job_pb2
from farm.core.limits import JOB_SETUP_S
from farm.errors import (
    InfrastructureError,
    InvalidInput,
    KernelCrashed,
    NobodyCanServe,
    NotFound,
    QuotaExceeded,
)
from farm.rpc import error_from_rpc


class Gate:
    """Runs that wait until they are let go."""

    def __init__(self):
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.outcome = job_pb2.JobResult(target="t")

    async def __call__(self, task):
        self.started.set()
        await self.go.wait()
        return self.outcome


async def until(condition, limit_s=60.0):
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def refused(kind):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert type(error_from_rpc(caught.value)) is kind


def endings(job):
    return (
        job_pb2.JobState.Name(job.state),
        job_pb2.Outcome.Name(job.outcome),
        job_pb2.Verdict.Name(job.verdict),
    )


COMPLETED = "JOB_STATE_TERMINAL", "OUTCOME_COMPLETED"
PASS = (*COMPLETED, "VERDICT_PASS")
FAIL = (*COMPLETED, "VERDICT_FAIL")


def states(job):
    return [
        job_pb2.AttemptState.Name(it.state).removeprefix("ATTEMPT_STATE_") for it in job.attempts
    ]


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


def test_jobs_run_by_priority_and_say_why_they_wait(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            gate = Gate()
            peer = await farm.peer("a", device_ids=("dev0",), perform=gate)
            first = (await farm.client.submit()).job_id
            await gate.started.wait()
            low = (await farm.client.submit(priority=-1)).job_id
            high = (await farm.client.submit(priority=5)).job_id

            async def why(job_id):
                return await farm.client.jobs.Why(job_pb2.WhyRequest(job_id=job_id))

            running, second, third = [await why(it) for it in (first, high, low)]
            assert running.reason.startswith("running on dev0 for")
            assert (running.position, running.estimate_s) == (0, 0.0)
            assert second.reason == "the device that matches is in use; it is next"
            assert second.position == 1
            assert third.reason == "the device that matches is in use; 1 ahead of it"
            assert third.position == 2
            assert second.estimate_s > JOB_SETUP_S  # what the first may still take
            assert third.estimate_s == pytest.approx(
                2 * second.estimate_s, rel=0.1
            )  # and the second
            assert f"by job {first}" in third.devices["dev0"]
            gate.go.set()
            await farm.client.wait(low)
            assert peer.performed == [f"{it}.1" for it in (first, high, low)]
            assert (await why(low)).reason == "ended: COMPLETED, PASS"

    run_async(body)


def test_job_that_waits_for_a_device_says_which_is_nearest(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("a", device_ids=("dev0",), labels={"arch": "x86"})
            job_id = (await farm.client.submit("arch=arm", wait_for_device=True)).job_id
            why = await farm.client.jobs.Why(job_pb2.WhyRequest(job_id=job_id))
            assert "nearest: dev0 fails arch=arm (it has arch=x86)" in why.reason
            assert (why.position, why.estimate_s) == (1, -1.0)
            await farm.peer("b", device_ids=("dev1",), labels={"arch": "arm"})
            assert endings((await farm.client.wait(job_id))[-1]) == PASS

    run_async(body)


def test_jobs_over_the_accounts_limits_wait_or_are_refused(start_farm, run_async):
    async def body() -> None:
        limits = {"account_held": 1, "account_queued": 2}
        async with start_farm(limits=limits) as farm:
            gate = Gate()
            peer = await farm.peer("a", device_ids=("dev0", "dev1"), perform=gate)
            await farm.client.submit()
            await gate.started.wait()
            waiting = [(await farm.client.submit()).job_id for _ in range(2)]
            assert len(peer.performed) == 1
            why = await farm.client.jobs.Why(job_pb2.WhyRequest(job_id=waiting[0]))
            assert why.reason == "account local holds 1 devices, its limit"
            with refused(QuotaExceeded):
                await farm.client.submit()
            await farm.client.submit(account="other")
            gate.go.set()
            for job_id in waiting:
                assert endings((await farm.client.wait(job_id))[-1]) == PASS

    run_async(body)


def test_drain_lets_the_job_end_refuses_new_ones_a_device_and_tells_followers(
    start_farm, run_async
):
    async def body() -> None:
        async with start_farm() as farm:
            gate = Gate()
            await farm.peer("a", device_ids=("dev0",), perform=gate)
            events = farm.client.admin.Events(admin_pb2.EventsRequest(follow=True), timeout=60)
            first = (await farm.client.submit()).job_id
            await gate.started.wait()
            leases = (await farm.client.admin.ListLeases(admin_pb2.ListLeasesRequest())).leases
            assert [(it.device_id, it.job_id, it.account) for it in leases] == [
                ("dev0", first, "local")
            ]
            with refused(InvalidInput):
                await farm.client.admin.SetAdmin(
                    admin_pb2.SetAdminRequest(
                        selector="device_id=dev0", admin=device_pb2.ADMIN_DRAINING
                    )
                )
            drain = admin_pb2.SetAdminRequest(
                selector="device_id=dev0", admin=device_pb2.ADMIN_DRAINING, reason="fan"
            )
            response = await farm.client.admin.SetAdmin(drain)
            assert [it.admin for it in response.devices] == [device_pb2.ADMIN_DRAINING]
            second = (await farm.client.submit()).job_id
            gate.go.set()
            assert endings((await farm.client.wait(first))[-1]) == PASS
            await until(lambda: farm.server.tracker.state.devices["dev0"].admin == "DRAINED")
            why = await farm.client.jobs.Why(job_pb2.WhyRequest(job_id=second))
            assert "out of service: dev0 (DRAINED: fan)" in why.reason
            drain.admin = device_pb2.ADMIN_ENABLED
            await farm.client.admin.SetAdmin(drain)
            assert endings((await farm.client.wait(second))[-1]) == PASS
            kinds = []
            while kinds[-1:] != ["device.enabled"]:
                event = await events.read()
                kinds.append(event.kind)
                assert event.number == len(kinds)
            assert [it for it in kinds if it.startswith("device.")] == [
                "device.draining",
                "device.drained",
                "device.enabled",
            ]
            later = farm.client.admin.Events(admin_pb2.EventsRequest(after=len(kinds)))
            assert all([it.number > len(kinds) async for it in later])

    run_async(body)


def test_restart_keeps_jobs_results_events_and_usage(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            gate = Gate()
            address = farm.server.address
            await farm.peer("a", device_ids=("dev0",), returns=True)
            done = (await farm.client.submit(client_key="k")).job_id
            before = (await farm.client.wait(done))[-1]
            await farm.client.admin.SetAdmin(
                admin_pb2.SetAdminRequest(
                    selector="device_id=dev0",
                    admin=device_pb2.ADMIN_MAINTENANCE,
                    reason="fan",
                    until_s=600.0,
                )
            )
            queued = (await farm.client.submit(priority=7)).job_id
            usage_s = farm.server.tracker.state.accounts["local"].usage_s
            count = farm.server.tracker.state.note_number
            assert usage_s > 0
        async with start_farm(address=address) as farm:
            state = farm.server.tracker.state
            after = await farm.client.job(done)
            for job in (before, after):
                assert job.ended_at > 0
                job.ClearField("submitted_at")
                job.ClearField("ended_at")
                for attempt in job.attempts:
                    attempt.ClearField("started_at")
                    attempt.ClearField("ended_at")
            assert after == before
            assert (await farm.client.submit(client_key="k")).job_id == done
            assert state.accounts["local"].used_s(farm.server.tracker.clock.now(), 3600.0) == (
                pytest.approx(usage_s, rel=0.01)
            )
            assert (state.accounts["local"].queued, state.run_jobs[queued].priority) == (1, 7)
            assert state.note_number >= count
            device = state.devices["dev0"]
            assert (device.admin, device.admin_reason) == ("MAINTENANCE", "fan")
            assert device.admin_until - farm.server.tracker.clock.now() == pytest.approx(
                600, abs=100
            )
            await farm.peer("a", device_ids=("dev0",), perform=gate)
            gate.go.set()
            await farm.client.admin.SetAdmin(
                admin_pb2.SetAdminRequest(selector="device_id=dev0", admin=device_pb2.ADMIN_ENABLED)
            )
            assert endings((await farm.client.wait(queued))[-1]) == PASS

    run_async(body)


def test_stop_ends_streams_that_wait_for_jobs_with_an_error(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            job_id = (await farm.client.submit(wait_for_device=True)).job_id
            streams = [
                farm.client.jobs.Wait(job_pb2.WaitRequest(job_id=job_id)),
                farm.client.jobs.Logs(job_pb2.LogsRequest(job_id=job_id)),
                farm.client.admin.Events(admin_pb2.EventsRequest(follow=True, after=10)),
            ]
            await streams[0].read()
            waits = [asyncio.ensure_future(it.read()) for it in streams]
            tracker = farm.server.tracker
            await until(lambda: len(tracker._changed[job_id]) == 2 and tracker._followers)
            await farm.server.stop()
            for caught in await asyncio.gather(*waits, return_exceptions=True):
                assert type(error_from_rpc(caught)) is InfrastructureError

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
