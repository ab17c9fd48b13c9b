"""What tokens with labels or an account see of agents, leases and events; what accounts may use."""

from __future__ import annotations

import contextlib

import grpc
import pytest

from farm.api.v1 import (
    account_pb2,
    account_pb2_grpc,
    admin_pb2,
    admin_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    lease_pb2,
    lease_pb2_grpc,
)
from farm.errors import InvalidInput, NotAllowed, QuotaExceeded
from farm.rpc import Credentials, aio_channel, error_from_rpc


@contextlib.asynccontextmanager
async def speaking(farm, role="user", **limits):
    """Open a channel that shows a new token."""
    text, _ = await farm.server.identity.tokens.create(role, **limits)
    shown = Credentials(text, farm.server.certificate)
    async with aio_channel(farm.server.address, credentials=shown) as channel:
        yield channel


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_from_rpc(caught.value)


async def seen(channel):
    """Return the agents with their devices, the leased devices, and the events that a token sees."""
    agents = await device_pb2_grpc.DeviceServiceStub(channel).ListAgents(
        device_pb2.ListAgentsRequest()
    )
    admin = admin_pb2_grpc.AdminServiceStub(channel)
    leases = await admin.ListLeases(admin_pb2.ListLeasesRequest())
    events = [it async for it in admin.Events(admin_pb2.EventsRequest())]
    return (
        {it.agent_id: list(it.device_ids) for it in agents.agents},
        {it.device_id for it in leases.leases},
        {(it.kind, it.subject) for it in events},
    )


async def lease_of(channel, selector):
    stub = lease_pb2_grpc.LeaseServiceStub(channel)
    return (await stub.Acquire(lease_pb2.AcquireRequest(selector=selector))).lease


def test_token_sees_agents_leases_and_events_of_its_labels_and_account_only(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            for colour in ("red", "blue"):
                await farm.peer(
                    colour,
                    device_ids=(f"{colour}-0", f"{colour}-1"),
                    labels={"colour": colour},
                )
            async with (
                speaking(farm, account="alice") as alice,
                speaking(farm, account="bob") as bob,
                speaking(farm, labels="colour=red") as red,
                speaking(farm, labels="device_id=red-1", account="bob") as narrow,
                speaking(farm, role="admin") as admin,
            ):
                await lease_of(alice, "device_id=red-0")
                await lease_of(bob, "device_id=blue-0")
                waiting = await farm.client.submit("colour=green", wait_for_device=True)
                job = ("job.submitted", waiting.job_id)
                await limit(admin, "bob", devices=5)
                grants = {it: ("lease.granted", f"{it}-0") for it in ("red", "blue")}
                joined = {it: ("agent.joined", it) for it in ("red", "blue")}
                limited = ("account.limited", "bob")

                agents, leased, events = await seen(admin)
                assert set(agents) == {"red", "blue"}
                assert leased == {"red-0", "blue-0"}
                assert {*grants.values(), *joined.values(), limited, job} <= events

                agents, leased, events = await seen(red)
                assert agents == {"red": ["red-0", "red-1"]}
                assert leased == {"red-0"}
                assert {grants["red"], joined["red"]} <= events
                assert not {grants["blue"], joined["blue"]} & events

                agents, leased, events = await seen(bob)
                assert (set(agents), leased) == ({"red", "blue"}, {"blue-0"})
                assert {grants["blue"], limited} <= events
                assert not {grants["red"], job} & events

                agents, leased, events = await seen(narrow)
                assert (agents, leased) == ({"red": ["red-1"]}, set())
                assert not {*grants.values(), joined["blue"], job} & events
                asked = admin_pb2.ListLeasesRequest(account="alice")
                stub = admin_pb2_grpc.AdminServiceStub(narrow)
                assert isinstance(await refused(stub.ListLeases(asked)), NotAllowed)

    run_async(body)


async def limit(channel, account, **limits):
    stub = account_pb2_grpc.AccountServiceStub(channel)
    request = account_pb2.SetLimitsRequest(
        account=account, limits=account_pb2.AccountLimits(**limits)
    )
    return (await stub.SetLimits(request)).account


async def accounts(channel):
    stub = account_pb2_grpc.AccountServiceStub(channel)
    found = await stub.ListAccounts(account_pb2.ListAccountsRequest())
    return {it.name: it for it in found.accounts}


def test_account_limits_are_set_by_admins_kept_over_restarts_and_enforced(start_farm, run_async):
    async def body() -> None:
        async with (
            start_farm() as farm,
            speaking(farm, role="admin") as admin,
            speaking(farm, role="operator") as operator,
        ):
            assert isinstance(await refused(limit(operator, "alice", queued=0)), NotAllowed)
            for wrong in ({"devices": -1}, {"device_seconds": -1.0}, {"window_s": 0.1}):
                assert isinstance(await refused(limit(admin, "alice", **wrong)), InvalidInput)
            assert isinstance(await refused(limit(admin, " ", devices=1)), InvalidInput)
            set_to = await limit(admin, "alice", devices=1, queued=1, device_seconds=60.0)
            assert (set_to.limits.devices, set_to.limits.window_s) == (1, 86_400.0)
            await limit(admin, "bob", devices=3)
        async with start_farm() as farm:
            await farm.peer("a", device_ids=("dev0", "dev1"))
            async with (
                speaking(farm, account="alice") as alice,
                speaking(farm, role="admin") as admin,
            ):
                assert set(await accounts(alice)) == {"alice"}
                assert set(await accounts(admin)) == {"alice", "bob"}
                await lease_of(alice, "device_id=dev0")
                farm.client.jobs = job_pb2_grpc.JobServiceStub(alice)
                waiting = (await farm.client.submit()).job_id
                why = await farm.client.jobs.Why(job_pb2.WhyRequest(job_id=waiting))
                assert why.reason == "account alice holds 1 devices, its limit"
                assert isinstance(await refused(farm.client.submit()), QuotaExceeded)
                assert (await accounts(alice))["alice"].waits_for == why.reason
                await limit(admin, "alice")
                assert (await farm.client.wait(waiting))[-1].verdict == job_pb2.VERDICT_PASS

    run_async(body)
