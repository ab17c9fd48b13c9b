"""What a tracker keeps and for how long: blobs under a limit, ended jobs, old records."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from farm_tracker.housekeeping import Retention

from farm.api.v1 import blob_pb2, job_pb2, run_pb2, session_pb2, tensor_pb2
from farm.core.digest import digest_of
from farm.errors import NotFound, StoreFull
from farm.rpc import digest_from_proto, digest_to_proto, error_from_rpc


@pytest.fixture
def error_of():
    async def refused(call):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        return error_from_rpc(caught.value)

    return refused


def age(blobs, seconds):
    """Let all blobs be unused for so long."""
    for known in blobs._index._known.values():
        known.used_at -= seconds


def names(blobs):
    return set(blobs._index.sizes())


def test_blobs_that_builds_jobs_results_and_sessions_need_are_pinned(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            blobs, client = farm.server.blobs, farm.client
            compiling, running = asyncio.Event(), asyncio.Event()
            output = await client.put(b"output")

            async def compile_(task):
                await compiling.wait()
                raise AssertionError("the test ends before")

            async def perform(task):
                await running.wait()
                tensor = tensor_pb2.Tensor(dtype="uint8", shape=[6], blob=digest_to_proto(output))
                return job_pb2.JobResult(outputs=[tensor])

            def answer(request):
                loaded = session_pb2.LoadReply(module_id=1)
                return session_pb2.SessionReply(seq=request.seq, loaded=loaded)

            peer = await farm.peer(
                "a",
                device_ids=("dev0", "dev1"),
                builds=("llvm/x86_64",),
                compile=compile_,
                perform=perform,
                answer=answer,
            )
            function = await client.function("f")
            items = await client.items((X86, "f"))
            building = asyncio.ensure_future(client.build_all(items))
            job = (await client.submit("device_id=dev0", values=bytes(70_000))).job_id
            spec = farm.server.tracker.state.run_jobs[job].run
            spec = job_pb2.RunSpec.FromString(spec)
            wanted = {function, *map(digest_from_proto, [spec.artifact, spec.inputs[0].blob])}
            async with asyncio.timeout(60):
                while not peer.compiled or not peer.performed:
                    await asyncio.sleep(0.01)
            await peer.log(f"{job}.1", b"printed")
            assert {it.sha256 for it in wanted} <= blobs.pinned.now()
            assert output.sha256 not in blobs.pinned.now()
            running.set()
            assert (await client.wait(job))[-1].verdict == job_pb2.VERDICT_PASS
            kept = {it.sha256 for it in (output, digest_of(b"printed"))}
            assert kept <= blobs.pinned.now()
            assert spec.artifact.sha256 not in blobs.pinned.now(), "it has ended"
            building.cancel()
            await asyncio.gather(building, return_exceptions=True)
            async with asyncio.timeout(60):
                while function.sha256 in blobs.pinned.now():
                    await asyncio.sleep(0.01)

            loaded = await client.artifact("g")
            request = run_pb2.RunRequest(artifact=digest_to_proto(loaded), symbol="g")
            stream = client.runs.Run(request)
            async with asyncio.timeout(60):
                while loaded.sha256 not in blobs.pinned.now():
                    await asyncio.sleep(0)  # the run is short: a pause could miss it
            stream.cancel()

    X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"
    run_async(body)


def test_store_at_its_limit_evicts_and_refuses_only_when_nothing_may_go(start_farm, run_async):
    async def body() -> None:
        async with start_farm(store_limit_bytes=100_000) as farm:
            blobs, client = farm.server.blobs, farm.client
            first = await client.put(bytes(60_000))
            with pytest.raises(StoreFull, match=r"60000 bytes in use, limit 100000\); the rest is"):
                await client.put(b"1" * 60_000)
            age(blobs, 700.0)
            second = await client.put(b"1" * 60_000)
            asked = [digest_to_proto(it) for it in (first, second)]
            missing = await client.blobs.FindMissing(blob_pb2.FindMissingRequest(digests=asked))
            assert [it.sha256 for it in missing.missing] == [first.sha256]
            usage = await client.blobs.Usage(blob_pb2.UsageRequest())
            assert (usage.used_bytes, usage.limit_bytes, usage.blobs) == (60_000, 100_000, 1)
            assert (usage.evicted_blobs, usage.evicted_bytes) == (1, 60_000)

    run_async(body)


def test_module_that_was_evicted_is_built_again(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("a", builds=("llvm/x86_64",))
            x86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"
            for count in (1, 2):
                result, _ = await farm.client.build_all(await farm.client.items((x86, "f")))
                assert result.HasField("artifact")
                assert peer.compiled == ["f"] * count
                await farm.client.build_all(await farm.client.items((x86, "f")))
                assert peer.compiled == ["f"] * count, "it is cached"
                age(farm.server.blobs, 700.0)
                farm.server.blobs.limit_bytes = 100  # room for this alone
                another = farm.server.blobs.put(bytes([count]) * 100)
                assert names(farm.server.blobs) == {another.sha256}
                farm.server.blobs.limit_bytes = 0

    run_async(body)


def test_tracker_that_goes_on_keeps_database_and_memory_flat(start_farm, run_async, error_of):
    retention = Retention(records_s=0.0, jobs_s=300.0)

    async def body() -> None:
        limits = {"retain_s": 300.0, "suspect_s": 1e6, "offline_s": 2e6}
        async with start_farm(retention=retention, limits=limits) as farm:
            await farm.peer("a", device_ids=("dev0",), builds=("llvm/x86_64",))
            x86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"
            tracker, jobs = farm.server.tracker, []
            for number in range(4):
                items = await farm.client.items((x86, f"f{number}"))
                await farm.client.build_all(items)
                jobs.append((await farm.client.submit()).job_id)
                assert (await farm.client.wait(jobs[-1]))[-1].verdict == job_pb2.VERDICT_PASS
            async with asyncio.timeout(60):
                state = tracker.state
                while state.run_jobs or state.leases or state.units or state.jobs:
                    await farm.pass_time(301.0)
                    await asyncio.sleep(0.05)
            assert tracker._store.counts()["builds"] == 4
            assert await farm.server.housekeeper.once() > 0
            counts = tracker._store.counts()
            for table in ("builds", "attempts", "jobs", "run_attempts", "leases", "action_cache"):
                assert counts[table] == 0, table
            assert counts["events"] <= 1  # what happened since
            error = await error_of(farm.client.job(jobs[0]))
            assert isinstance(error, NotFound)
            assert f"job {jobs[0]}: it ended at " in error.message
            assert "(COMPLETED, PASS) and was deleted since" in error.message
            assert "`farm up --keep-jobs`" in error.message
            never = await error_of(farm.client.job("job-never"))
            assert (
                "job-never: unknown; there never was one of this id, or it was deleted"
                in never.message
            )

    run_async(body)


def test_records_that_are_open_or_young_stay(start_farm, run_async):
    async def body() -> None:
        async with start_farm(retention=Retention(records_s=3600.0)) as farm:
            x86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"
            waiting = asyncio.Event()

            async def compile_(task):
                await waiting.wait()
                raise AssertionError

            peer = await farm.peer("a", builds=("llvm/x86_64",), compile=compile_)
            items = await farm.client.items((x86, "f"))
            building = asyncio.ensure_future(farm.client.build_all(items))
            async with asyncio.timeout(60):
                while not peer.compiled:
                    await asyncio.sleep(0.01)
            store, clock = farm.server.tracker._store, farm.server.tracker.clock
            before = store.counts()
            assert await farm.server.housekeeper.once() == 0
            assert store.prune(clock.wall() + 1e6, 0.0) == before["events"], "only events are over"
            after = store.counts()
            assert replace_events(after) == replace_events(before)
            building.cancel()
            await asyncio.gather(building, return_exceptions=True)

    def replace_events(counts):
        return {**counts, "events": 0}

    run_async(body)
