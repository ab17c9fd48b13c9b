"""What an acknowledgement is worth: the tracker is killed, its disk is full, its database is another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys

import grpc
import pytest
from tracker_ends.jobs import Gate

from farm.api.v1 import job_pb2
from farm.errors import StoreFull
from farm.rpc import aio_channel, error_from_rpc


@contextlib.contextmanager
def tracker_process(folder, listen="127.0.0.1:0"):
    """Run a real tracker; SIGKILL is the only way it ends."""
    command = [sys.executable, "-m", "farm_tracker", "--data-dir", str(folder), "--listen", listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("ends", ["while the tracker is away", "after it is back"])
def test_tracker_killed_while_a_job_runs_adopts_it_and_loses_nothing(
    tmp_path, connect, run_async, ends
):
    async def body() -> None:
        gate = Gate()
        async with contextlib.AsyncExitStack() as stack:

            async def open_channel(address):
                return await stack.enter_async_context(aio_channel(address))

            with tracker_process(tmp_path / "data") as (_, address):
                client, peer, speaking = await connect(
                    await open_channel(address), device_ids=("dev0",), returns=True, perform=gate
                )
                running = await client.submit(client_key="a")
                await asyncio.wait_for(gate.started.wait(), 60)
                queued = await client.submit(client_key="b")
            if ends == "while the tracker is away":
                gate.go.set()
            with tracker_process(tmp_path / "data", address):
                client = peer.client = type(client)(await open_channel(address))
                for key, before in (("a", running), ("b", queued)):
                    after = await client.submit(client_key=key)
                    assert (after.job_id, after.existed) == (before.job_id, True)
                await asyncio.sleep(0.5)
                gate.go.set()
                for accepted in (running, queued):
                    job = (await client.wait(accepted.job_id))[-1]
                    assert job.verdict == job_pb2.VERDICT_PASS
                    assert [it.state for it in job.attempts] == [job_pb2.ATTEMPT_STATE_DONE]
                assert peer.performed == [f"{it.job_id}.1" for it in (running, queued)]
            speaking.cancel()
            await asyncio.wait({speaking})
            with tracker_process(tmp_path / "data", address):
                client = type(client)(await open_channel(address))
                for accepted in (running, queued):
                    assert (await client.job(accepted.job_id)).verdict == job_pb2.VERDICT_PASS

    run_async(body)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = os.geteuid() == 0 and shutil.which("mount") is not None
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if not mounted or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs to mount a tmpfs: run as root with CAP_SYS_ADMIN")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path) -> None:
    """Leave no free block on the disk of `path`."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def test_full_disk_refuses_new_jobs_and_still_takes_results(small_disk, start_farm, run_async):
    async def body() -> None:
        gate = Gate()
        where = small_disk / "data"
        async with start_farm(where, reserve_bytes=1 << 20) as farm:
            await farm.peer("a", device_ids=("dev0",), perform=gate)
            running = [(await farm.client.submit()).job_id for _ in range(3)]
            await gate.started.wait()
            fill(small_disk / "filler")
            for _ in range(2):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await farm.client.submit()
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert type(error_from_rpc(caught.value)) is StoreFull
            with pytest.raises(StoreFull):
                await farm.client.put(os.urandom(1 << 16))
            gate.go.set()
            for job_id in running:
                assert (await farm.client.wait(job_id))[-1].verdict == job_pb2.VERDICT_PASS
            assert not (where / "tracker.db.reserve").exists()
        async with start_farm(where, reserve_bytes=1 << 20) as farm:
            for job_id in running:
                assert (await farm.client.job(job_id)).verdict == job_pb2.VERDICT_PASS
            (small_disk / "filler").unlink()
            await farm.peer("a", device_ids=("dev0",), perform=gate)
            job_id = (await farm.client.submit()).job_id
            assert (await farm.client.wait(job_id))[-1].verdict == job_pb2.VERDICT_PASS
            assert (where / "tracker.db.reserve").stat().st_size == 1 << 20

    run_async(body)
