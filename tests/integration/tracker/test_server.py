from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import grpc
import pytest
from farm_tracker.server import serve

from farm.api.v1 import (
    blob_pb2,
    device_pb2,
    device_pb2_grpc,
    job_pb2,
    lease_pb2,
    run_pb2,
    session_pb2,
    tensor_pb2,
)
from farm.core.digest import digest_of
from farm.core.limits import MAX_INLINE_BYTES
from farm.errors import InfrastructureError, InvalidInput, NotAllowed
from farm.ir.verifier import MAX_PARAMS
from farm.rpc import channel, digest_to_proto, error_from_rpc


def test_restart_keeps_blobs_cache_leases_and_epochs(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:
            address = farm.server.address
            await farm.peer("builder", builds=("llvm/x86_64",))
            peer = await farm.peer("agent", device_ids=("dev0", "dev1"))
            items = await farm.client.items((targets["x86"], "add"))
            before, _ = await farm.client.build_all(items)
            kept = await farm.client.acquire("device_id=dev0", ttl_s=60)
            ended = await farm.client.acquire("device_id=dev1", ttl_s=60)
            await farm.client.leases.Release(
                lease_pb2.ReleaseRequest(lease_id=ended.lease_id, epoch=ended.epoch)
            )
            lease = farm.server.tracker.state.leases[kept.lease_id]
            async with asyncio.timeout(60):
                while farm.server.tracker.state.leases[kept.lease_id].state != "ACTIVE":
                    await asyncio.sleep(0.01)
        async with start_farm(address=address) as farm:
            state = farm.server.tracker.state
            assert (state.leases[kept.lease_id].state, state.devices["dev0"].use) == (
                "ACTIVE",
                "LEASED",
            )
            assert state.leases[kept.lease_id].expires_at == pytest.approx(lease.expires_at, abs=1)
            assert state.devices["dev0"].observed == "UNKNOWN"
            peer = await farm.peer("agent", device_ids=("dev0", "dev1"), held={"dev0": 1})
            await farm.peer("builder", "p2", builds=("llvm/x86_64",))
            async with asyncio.timeout(60):
                while "dev0" not in peer.grants:
                    await asyncio.sleep(0.01)
            assert (peer.grants["dev0"].lease_id, peer.grants["dev0"].epoch) == (kept.lease_id, 1)
            renewed = await farm.client.leases.Renew(
                lease_pb2.RenewRequest(lease_id=kept.lease_id, epoch=kept.epoch, ttl_s=30)
            )
            assert renewed.remaining_s == 30
            assert (await farm.client.acquire("device_id=dev1", wait_s=60)).epoch == 2
            after, _ = await farm.client.build_all(items)
            assert [it.cached for it in after.items] == [True]
            assert after.artifact == before.artifact

    run_async(body)


def test_restart_loses_a_kept_lease_whose_agent_process_is_another(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", "p1", device_ids=("dev0",))
            kept = await farm.client.acquire(ttl_s=60)
        async with start_farm() as farm:
            await farm.peer("agent", "p2", device_ids=("dev0",))
            assert farm.server.tracker.state.leases[kept.lease_id].state == "LOST"
            assert (await farm.client.acquire(wait_s=60)).epoch == 2

    run_async(body)


def test_restart_expires_a_lease_whose_time_ran_out_meanwhile(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            kept = await farm.client.acquire(ttl_s=60)
        async with start_farm(ahead_s=61.0) as farm:
            assert farm.server.tracker.state.leases[kept.lease_id].state == "EXPIRED"
            await farm.peer("agent", device_ids=("dev0",))
            assert (await farm.client.acquire(wait_s=60)).epoch == 2

    run_async(body)


def test_serve_in_plain_text_on_an_address_of_other_machines_is_refused(tmp_path, run_async):
    async def body() -> None:
        for address, error in (
            ("0.0.0.0:0", NotAllowed),
            ("[::]:0", NotAllowed),
            ("10.1.2.3:0", NotAllowed),
            ("example.org:0", InvalidInput),
            ("127.0.0.1", InvalidInput),
            ("127.0.0.1:99999", InvalidInput),
        ):
            with pytest.raises(error):
                await serve(tmp_path / "data", address, tls=False)
        assert not (tmp_path / "data").exists()

    run_async(body)


def test_serve_twice_on_one_folder_is_refused(tmp_path, run_async):
    async def body() -> None:
        first = await serve(tmp_path / "data")
        with pytest.raises(InfrastructureError, match="another tracker uses it"):
            await serve(tmp_path / "data")
        await first.stop()
        second = await serve(tmp_path / "data")
        await second.stop()

    run_async(body)


def test_serve_on_a_taken_port_is_refused_and_lets_go_of_the_folder(tmp_path, run_async):
    async def body() -> None:
        first = await serve(tmp_path / "first")
        with pytest.raises(InfrastructureError, match="cannot bind"):
            await serve(tmp_path / "second", first.address)
        await first.stop()
        await (await serve(tmp_path / "second")).stop()

    run_async(body)


def test_blobs_are_written_in_chunks_and_read_back(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            for data in (b"", b"small", os.urandom((3 << 20) + 17)):
                digest = await farm.client.put(data)
                assert await farm.client.get(digest) == data
                missing = await farm.client.blobs.FindMissing(
                    blob_pb2.FindMissingRequest(
                        digests=[digest_to_proto(it) for it in (digest, digest_of(b"absent"))] * 2
                    )
                )
                assert [it.sha256 for it in missing.missing] == [digest_of(b"absent").sha256]

    run_async(body)


def test_blob_writes_that_break_the_contract_are_refused_and_leave_nothing(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            digest = digest_to_proto(digest_of(b"right"))
            huge = digest_to_proto(digest_of(b"x"))
            huge.size_bytes = 1 << 40
            write = blob_pb2.WriteRequest
            for requests, code in (
                ([], "INVALID_INPUT"),
                ([write(data=b"right")], "INVALID_INPUT"),
                ([write(digest=digest, data=b"wrong")], "BLOB_CORRUPT"),
                ([write(digest=digest, data=b"righ")], "BLOB_CORRUPT"),
                ([write(digest=digest, data=b"right and more")], "BLOB_CORRUPT"),
                ([write(digest=digest, data=b"ri"), write(digest=digest)], "INVALID_INPUT"),
                ([write(digest=digest, data=bytes((1 << 20) + 1))], "INVALID_INPUT"),
                ([write(digest=huge)], "STORE_FULL"),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await farm.client.blobs.Write(iter(requests))
                assert error_from_rpc(caught.value).code == code
            assert list(farm.server.blobs.incoming.iterdir()) == []
            assert not farm.server.blobs.has(digest_of(b"right"))
            await farm.client.blobs.Write(iter([write(digest=digest, data=b"right")]))
            again = await farm.client.blobs.Write(iter([write(digest=digest, data=b"right")]))
            assert again.stored_bytes == 0

    run_async(body)


def test_request_with_every_input_as_large_as_may_travel_inline_is_taken(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            content = bytes(MAX_INLINE_BYTES)
            tensor = tensor_pb2.Tensor(dtype="int8", shape=[len(content)], inline=content)
            request = run_pb2.RunRequest(
                artifact=digest_to_proto(digest_of(b"absent")),
                symbol="f",
                inputs=[tensor] * MAX_PARAMS,
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in farm.client.runs.Run(request):
                    pass
            assert error_from_rpc(caught.value).code == "NOT_FOUND"

    run_async(body)


def start_process(folder, *arguments: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "farm_tracker", "--data-dir", str(folder), *arguments],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_prints_its_address_serves_and_ends_cleanly(tmp_path, number):
    with start_process(tmp_path / "data", "--listen", "127.0.0.1:0") as process:
        address = process.stdout.readline().strip()
        with channel(address) as opened:
            stub = device_pb2_grpc.DeviceServiceStub(opened)
            response = stub.ListDevices(device_pb2.ListDevicesRequest(), timeout=60)
        assert list(response.devices) == []
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert f"serving address={address}" in err
    assert "level=INFO logger=farm_tracker.main stopped" in err
    assert "Traceback" not in err


def test_url_of_the_database_may_stand_in_the_environment_where_no_other_user_sees_it(tmp_path):
    database = tmp_path / "elsewhere.db"
    url = f"sqlite:///{database}"
    with start_process(tmp_path / "data", "--listen", "127.0.0.1:0", FARM_DATABASE=url) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert database.exists()
    assert not (tmp_path / "data" / "tracker.db").exists()


def test_process_in_plain_text_on_an_open_address_ends_with_not_allowed(tmp_path):
    with start_process(tmp_path / "data", "--listen", "0.0.0.0:0", "--plaintext") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (8, "")
    assert "plain text would show them every token" in err


def test_stop_ends_everything_that_waits_with_an_error(start_farm, run_async, targets):
    async def body() -> None:
        never = asyncio.Event()

        async def hang(task):
            await never.wait()

        async with start_farm() as farm:
            peer = await farm.peer(
                "agent", builds=("llvm/x86_64",), device_ids=("dev0",), compile=hang
            )
            items = await farm.client.items((targets["x86"], "add"))
            lease = await farm.client.acquire()
            stream = farm.client.sessions.Attach()
            attach = session_pb2.AttachRequest(
                lease_id=lease.lease_id, epoch=lease.epoch, lease_token=lease.lease_token
            )
            await stream.write(session_pb2.SessionRequest(seq=1, attach=attach))
            await stream.read()
            waits = [
                asyncio.create_task(farm.client.acquire(wait_s=60)),
                asyncio.create_task(farm.client.build_all(items)),
                asyncio.create_task(stream.read()),
            ]
            async with asyncio.timeout(60):
                while not (peer.compiled and farm.server.tracker.state.queued_leases):
                    await asyncio.sleep(0.01)
            await farm.server.stop()
            codes = []
            for outcome in await asyncio.gather(*waits, return_exceptions=True):
                assert isinstance(outcome, grpc.aio.AioRpcError)
                codes.append(error_from_rpc(outcome).code)
            assert codes == ["INFRASTRUCTURE"] * 3
        async with start_farm() as farm:
            assert farm.server.tracker.state.leases[lease.lease_id].is_live

    run_async(body)


def forbid_writing(server) -> None:
    """Let whatever the tracker stores from now on be refused."""
    with server._store._engine.connect() as connection:
        connection.exec_driver_sql("pragma query_only = 1")


def test_store_that_cannot_be_written_is_told_to_all_who_wait(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            held = await farm.client.acquire()
            job_id = (await farm.client.submit(wait_for_device=True)).job_id
            state = farm.server.tracker.state
            jobs = farm.client.jobs.Wait(job_pb2.WaitRequest(job_id=job_id), timeout=60)
            await jobs.read()
            waits = [
                asyncio.create_task(farm.client.acquire(wait_s=60)),
                asyncio.ensure_future(jobs.read()),
            ]
            async with asyncio.timeout(60):
                while not state.queued_leases:
                    await asyncio.sleep(0.01)
            forbid_writing(farm.server)
            release = lease_pb2.ReleaseRequest(lease_id=held.lease_id, epoch=held.epoch)
            told = await asyncio.gather(
                farm.client.leases.Release(release), *waits, return_exceptions=True
            )
            for it in told:
                assert isinstance(it, grpc.aio.AioRpcError), it
                assert "readonly database" in error_from_rpc(it).message
            await farm.server.stop()
            with pytest.raises(InfrastructureError, match="readonly database"):
                await farm.server.tracker.settled()

    run_async(body)


def test_store_that_cannot_be_written_grants_nothing_and_ends_the_tracker(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            before = await farm.client.acquire()
            await farm.client.leases.Release(
                lease_pb2.ReleaseRequest(lease_id=before.lease_id, epoch=before.epoch)
            )
            forbid_writing(farm.server)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.acquire(wait_s=60)
            assert "readonly database" in error_from_rpc(caught.value).message
            async with asyncio.timeout(60):
                failure = await farm.server.failed
            assert isinstance(failure, InfrastructureError)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.acquire(wait_s=60)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with start_farm() as farm:
            assert farm.server.tracker.state.devices["dev0"].epoch == before.epoch

    run_async(body)
