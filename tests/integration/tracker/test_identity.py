"""Who may do what, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import pkgutil

import grpc
import pytest
from farm_tracker.identity.matrix import PACKAGE, RULES

import farm.api.v1
from farm.api.v1 import (
    agent_pb2,
    device_pb2,
    device_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    lease_pb2,
    lease_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    session_pb2,
)
from farm.core.tokens import new_token
from farm.errors import (
    FarmError,
    Fenced,
    InvalidInput,
    NobodyCanServe,
    NotAllowed,
    TrackerUnreachable,
    Unauthenticated,
)
from farm.rpc import Credentials, aio_channel, error_from_rpc
from farm.rpc.credentials import ConnectString, fetch_certificate, fingerprint_of


def all_methods():
    """Return (path, client streams, server streams) of each method of each service."""
    found = []
    for module in pkgutil.iter_modules(farm.api.v1.__path__):
        if module.name.endswith("_pb2"):
            descriptor = importlib.import_module(f"farm.api.v1.{module.name}").DESCRIPTOR
            for service in descriptor.services_by_name.values():
                found += [
                    (f"/{service.full_name}/{m.name}", m.client_streaming, m.server_streaming)
                    for m in service.methods
                ]
    return found


@contextlib.asynccontextmanager
async def speaking(farm, token):
    """Open a channel that shows a token; an empty one shows none."""
    shown = Credentials(token, farm.server.certificate)
    async with aio_channel(farm.server.address, credentials=shown) as channel:
        yield channel


async def refusal(channel, path, client_streams, server_streams):
    """Call a method with bytes that mean nothing; return the error."""
    kind = f"{'stream' if client_streams else 'unary'}_{'stream' if server_streams else 'unary'}"
    call = getattr(channel, kind)(path)
    junk = b"\xff" * 64
    try:
        async with asyncio.timeout(60):
            opened = call(iter([junk]) if client_streams else junk)
            if server_streams:
                async for _ in opened:
                    pass
            else:
                await opened
    except grpc.aio.AioRpcError as error:
        # About one refused stream in a thousand, under load: gRPC's client was still writing and says only this.
        if client_streams and "Internal error from Core" in (error.details() or ""):
            return await refusal(channel, path, client_streams, server_streams)
        return error_from_rpc(error), error.code()
    raise AssertionError(f"{path} was served")


async def refused(call):
    """Await a call that must fail; return its error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_from_rpc(caught.value)


def identity(channel):
    return identity_pb2_grpc.IdentityServiceStub(channel)


def leases(channel):
    return lease_pb2_grpc.LeaseServiceStub(channel)


async def user(farm, **options):
    """Make a token of role user, or another."""
    text, _ = await farm.server.identity.tokens.create(options.pop("role", "user"), **options)
    return text


def audit(tmp_path):
    text = (tmp_path / "data" / "audit.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("token", ["", "x", new_token().text])
def test_stranger_is_refused_on_every_verb(start_farm, run_async, tmp_path, token):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            async with speaking(farm, token) as channel:
                for method in all_methods():
                    error, code = await refusal(channel, *method)
                    assert type(error) is Unauthenticated, method
                    assert code is grpc.StatusCode.UNAUTHENTICATED
                    assert len(token) < 2 or token not in error.message
            state = farm.server.tracker.state
            assert (list(state.agents), state.leases, state.jobs) == (["agent"], {}, {})
            assert state.devices["dev0"].use == "IDLE"
        seen = {line["method"] for line in audit(tmp_path) if "refused" in line["outcome"]}
        assert seen == {path for path, _, _ in all_methods()}
        assert len(token) < 2 or token not in (tmp_path / "data" / "audit.jsonl").read_text()

    assert len(all_methods()) == len(RULES)
    run_async(body)


def test_each_role_is_refused_whatever_is_not_its_own(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            for role, options in (
                ("user", {}),
                ("operator", {}),
                ("enrolment", {}),
                ("agent", {"agent_id": "a"}),
            ):
                text = await user(farm, role=role, **options)
                verbs = farm.server.identity.tokens.authenticate(text).verbs
                async with speaking(farm, text) as channel:
                    for path, *streams in all_methods():
                        if RULES[path.removeprefix(f"/{PACKAGE}.")].verb not in verbs:
                            error, code = await refusal(channel, path, *streams)
                            assert type(error) is NotAllowed, (role, path)
                            assert code is grpc.StatusCode.PERMISSION_DENIED
                            assert "lacks the verb" in error.message

    run_async(body)


def test_method_that_does_not_exist_is_refused_to_an_admin_too(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm, speaking(farm, await user(farm, role="admin")) as channel:
            for path in (f"/{PACKAGE}.LeaseService/Steal", "/grpc.health.v1.Health/Check"):
                error, _ = await refusal(channel, path, False, False)
                assert "nobody may call it" in error.message

    run_async(body)


def test_token_expired_or_revoked_is_refused(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            short = await user(farm, expires_s=60.0)
            async with speaking(farm, short) as channel:
                devices = device_pb2_grpc.DeviceServiceStub(channel)
                await devices.ListDevices(device_pb2.ListDevicesRequest())
                await farm.pass_time(61.0)
                error = await refused(devices.ListDevices(device_pb2.ListDevicesRequest()))
                assert isinstance(error, Unauthenticated)
                assert "expired" in error.message
            admin = identity(farm.client.channel)
            made = await admin.CreateToken(identity_pb2.CreateTokenRequest(role="user"))
            async with speaking(farm, made.token) as channel:
                devices = device_pb2_grpc.DeviceServiceStub(channel)
                await devices.ListDevices(device_pb2.ListDevicesRequest())
                revoke = identity_pb2.RevokeTokenRequest(token_id=made.info.token_id)
                assert (await admin.RevokeToken(revoke)).info.revoked_at > 0
                error = await refused(devices.ListDevices(device_pb2.ListDevicesRequest()))
                assert "revoked" in error.message
            listed = (await admin.ListTokens(identity_pb2.ListTokensRequest())).tokens
            assert [it.role for it in listed] == ["admin", "user", "user"]

    run_async(body)


def test_tokens_are_made_and_revoked_by_admins_and_noted_without_secrets(
    start_farm, run_async, tmp_path
):
    async def body() -> None:
        async with start_farm() as farm:
            admin = identity(farm.client.channel)
            made = await admin.CreateToken(identity_pb2.CreateTokenRequest(role="user"))
            await admin.RevokeToken(identity_pb2.RevokeTokenRequest(token_id=made.info.token_id))
            many = identity_pb2.CreateTokenRequest(role="user", verbs=["see"] * 65)
            assert isinstance(await refused(admin.CreateToken(many)), InvalidInput)
        notes = [(it["verb"], it["subject"]) for it in audit(tmp_path) if it["subject"]]
        assert notes == [("tokens", f"user {made.info.token_id}")] * 2
        assert made.token not in (tmp_path / "data" / "audit.jsonl").read_text()

    run_async(body)


def test_token_with_labels_sees_and_takes_only_devices_that_match(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("red", device_ids=("dev-red",), labels={"colour": "red"})
            await farm.peer("blue", device_ids=("dev-blue",), labels={"colour": "blue"})
            text = await user(farm, labels="colour=red")
            async with speaking(farm, text) as channel:
                devices = device_pb2_grpc.DeviceServiceStub(channel)
                listed = await devices.ListDevices(device_pb2.ListDevicesRequest())
                assert [it.description.device_id for it in listed.devices] == ["dev-red"]
                granted = await leases(channel).Acquire(lease_pb2.AcquireRequest())
                assert granted.lease.device.description.device_id == "dev-red"
                for selector in ("device_id=dev-blue", "colour=blue", "colour!=red"):
                    asked = lease_pb2.AcquireRequest(selector=selector)
                    error = await refused(leases(channel).Acquire(asked))
                    assert isinstance(error, NobodyCanServe)
                    assert "blue" not in str(error).replace(selector, "")
                    assert "those with colour=red" in str(error)
                run = run_pb2_grpc.RunServiceStub(channel).Run(run_pb2.RunRequest(selector="=x"))
                error = await refused(anext(aiter(run)))
                assert error.code == "INVALID_SELECTOR"

    run_async(body)


def test_lease_is_used_by_whoever_has_its_token_only(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            async with (
                speaking(farm, await user(farm)) as mine,
                speaking(farm, await user(farm)) as other,
            ):
                lease = (await leases(mine).Acquire(lease_pb2.AcquireRequest())).lease
                known = {"lease_id": lease.lease_id, "epoch": lease.epoch}
                for shown in ("", "x", lease.lease_token[:-1] + "!", "y" * 10_000):
                    wrong = {**known, "lease_token": shown}
                    renew = leases(other).Renew(lease_pb2.RenewRequest(**wrong))
                    assert type(await refused(renew)) is NotAllowed
                    release = leases(other).Release(lease_pb2.ReleaseRequest(**wrong))
                    assert type(await refused(release)) is NotAllowed
                    assert type(await attach(other, **wrong)) is NotAllowed
                assert farm.server.tracker.state.leases[lease.lease_id].is_live
                right = {**known, "lease_token": lease.lease_token}
                await leases(mine).Renew(lease_pb2.RenewRequest(**right))
                assert await attach(mine, **right) is None
                await leases(mine).Release(lease_pb2.ReleaseRequest(**right))

    run_async(body)


def test_lease_token_replayed_after_the_lease_is_worth_nothing(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            async with speaking(farm, await user(farm)) as channel:
                old = (await leases(channel).Acquire(lease_pb2.AcquireRequest())).lease
                mine = {
                    "lease_id": old.lease_id,
                    "epoch": old.epoch,
                    "lease_token": old.lease_token,
                }
                await leases(channel).Release(lease_pb2.ReleaseRequest(**mine))
                new = (await leases(channel).Acquire(lease_pb2.AcquireRequest(wait_s=60))).lease
                assert (new.epoch, new.lease_token != old.lease_token) == (old.epoch + 1, True)
                assert type(await attach(channel, **mine)) is Fenced
                theirs = {"lease_id": new.lease_id, "epoch": new.epoch}
                replayed = {**theirs, "lease_token": old.lease_token}
                assert type(await attach(channel, **replayed)) is NotAllowed
                renew = leases(channel).Renew(lease_pb2.RenewRequest(**replayed))
                assert type(await refused(renew)) is NotAllowed
                await leases(channel).Release(lease_pb2.ReleaseRequest(**mine))  # has ended already
                assert farm.server.tracker.state.leases[new.lease_id].is_live

    run_async(body)


def test_lease_token_survives_a_restart_of_the_tracker(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            text = await user(farm)
            async with speaking(farm, text) as channel:
                lease = (await leases(channel).Acquire(lease_pb2.AcquireRequest())).lease
        async with start_farm() as farm, speaking(farm, text) as channel:
            renew = lease_pb2.RenewRequest(
                lease_id=lease.lease_id, epoch=lease.epoch, lease_token=lease.lease_token
            )
            assert (await leases(channel).Renew(renew)).remaining_s == 60

    run_async(body)


def test_operator_ends_leases_of_others_without_their_tokens(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            async with (
                speaking(farm, await user(farm)) as mine,
                speaking(farm, await user(farm, role="operator")) as operator,
            ):
                lease = (await leases(mine).Acquire(lease_pb2.AcquireRequest())).lease
                known = {"lease_id": lease.lease_id, "epoch": lease.epoch}
                assert type(await attach(operator, **known)) is NotAllowed
                await leases(operator).Release(lease_pb2.ReleaseRequest(**known))
                assert not farm.server.tracker.state.leases[lease.lease_id].is_live

    run_async(body)


async def attach(channel, **fields) -> FarmError | None:
    """Attach to a lease; return the error, if any."""
    call = channel.stream_stream(
        f"/{PACKAGE}.SessionService/Attach",
        request_serializer=session_pb2.SessionRequest.SerializeToString,
        response_deserializer=session_pb2.SessionReply.FromString,
    )()
    try:
        asked = session_pb2.AttachRequest(**fields)
        await call.write(session_pb2.SessionRequest(seq=1, attach=asked))
        await call.read()
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error)
    except asyncio.InvalidStateError:
        pass
    code = await call.code() if call.done() else None
    call.cancel()
    return None if code is None else FarmError(str(code))


def synchronise(channel, agent_id):
    """Speak as an agent; return the first answer's call."""
    call = channel.stream_stream(
        f"/{PACKAGE}.AgentService/Synchronise",
        request_serializer=agent_pb2.AgentState.SerializeToString,
        response_deserializer=agent_pb2.DesiredState.FromString,
    )

    async def states():
        yield agent_pb2.AgentState(agent_id=agent_id, instance_id="p1", version="0.1.0")
        await asyncio.Event().wait()

    return call(states())


def test_agent_enrols_once_and_speaks_for_itself_only(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            once = await user(farm, role="enrolment")
            async with speaking(farm, once) as channel:
                enrol = identity_pb2.EnrolRequest(agent_id="shelf-1")
                own = (await identity(channel).Enrol(enrol)).token
                other = identity_pb2.EnrolRequest(agent_id="shelf-2")
                error = await refused(identity(channel).Enrol(other))
                assert isinstance(error, Unauthenticated)
            async with speaking(farm, own) as channel:
                call = synchronise(channel, "shelf-1")
                assert (await call.read()).revision == 1
                error = await refused(synchronise(channel, "shelf-2").read())
                assert (type(error), "of agent shelf-1" in error.message) == (NotAllowed, True)
                serve = channel.stream_stream(
                    f"/{PACKAGE}.AgentService/Serve",
                    request_serializer=agent_pb2.ServeFrame.SerializeToString,
                )
                opened = agent_pb2.ServeOpen(agent_id="shelf-2", instance_id="p1")
                error = await refused(serve(iter([agent_pb2.ServeFrame(open=opened)])).read())
                assert "of agent shelf-1" in error.message
                call.cancel()
            assert set(farm.server.tracker.state.agents) == {"shelf-1"}

    run_async(body)


def test_revoked_token_ends_what_runs_under_it(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            tokens = farm.server.identity.tokens
            own, credential = await tokens.create("agent", agent_id="shelf-1")
            text, waiting = await tokens.create("user")
            held = await farm.client.acquire()
            async with speaking(farm, own) as agents, speaking(farm, text) as users:
                call = synchronise(agents, "shelf-1")
                await call.read()
                acquire = asyncio.ensure_future(
                    leases(users).Acquire(lease_pb2.AcquireRequest(wait_s=60))
                )
                async with asyncio.timeout(60):
                    while not farm.server.tracker.state.queued_leases:
                        await asyncio.sleep(0.01)
                await tokens.revoke(credential.token_id)
                await tokens.revoke(waiting.token_id)
                for ended in (call.read(), acquire):
                    error = await refused(ended)
                    assert (type(error), "ended during the call" in error.message) == (
                        Unauthenticated,
                        True,
                    )
            async with asyncio.timeout(60):
                while farm.server.tracker.state.queued_leases:
                    await asyncio.sleep(0.01)
            assert farm.server.tracker.state.leases[held.lease_id].is_live

    run_async(body)


def test_certificate_is_trusted_by_its_fingerprint_only(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            address, certificate = farm.server.address, farm.server.certificate
            pin = fingerprint_of(certificate)
            string = ConnectString(address, await user(farm), pin)
            fetched = await asyncio.to_thread(fetch_certificate, address, pin)
            assert fetched == certificate
            with pytest.raises(NotAllowed, match="its certificate is another one"):
                await asyncio.to_thread(fetch_certificate, address, "0" * 64)
            request = device_pb2.ListDevicesRequest()
            shown = Credentials(string.token, fetched)
            async with aio_channel(address, credentials=shown) as channel:
                await device_pb2_grpc.DeviceServiceStub(channel).ListDevices(request)
            async with start_farm("other") as other:
                wrong = Credentials(string.token, other.server.certificate)
                for untrusted in (wrong, Credentials(string.token)):
                    async with aio_channel(address, credentials=untrusted) as channel:
                        devices = device_pb2_grpc.DeviceServiceStub(channel)
                        error = await refused(devices.ListDevices(request, timeout=60))
                        assert error.code == "TRACKER_UNREACHABLE"

    run_async(body)


def test_certificate_stays_the_same_after_a_restart(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            before = farm.server.certificate
        async with start_farm() as farm:
            assert farm.server.certificate == before
            await farm.client.devices.ListDevices(device_pb2.ListDevicesRequest())

    run_async(body)


def test_certificate_of_nobody_is_an_unreachable_tracker():
    with pytest.raises(TrackerUnreachable, match="nobody answers with TLS"):
        fetch_certificate("127.0.0.1:1", "0" * 64)
