"""The queue of jobs: who is next and why others wait, what drains, restarts and stops do to it."""

from __future__ import annotations

import asyncio

import pytest
from tracker_ends.jobs import PASS, Gate, endings, refused, until

from farm.api.v1 import admin_pb2, device_pb2, job_pb2
from farm.core.limits import JOB_SETUP_S
from farm.errors import (
    InfrastructureError,
    InvalidInput,
    QuotaExceeded,
)
from farm.rpc import error_from_rpc


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
