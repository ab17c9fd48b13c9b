from __future__ import annotations

import asyncio

import grpc
import pytest
from farm_tracker.state.commands import BuildOrder, PushDesired
from tracker_ends.jobs import until

from farm.api.v1 import blob_pb2, build_pb2, device_pb2, ir_pb2
from farm.artifact import Artifact
from farm.core.digest import digest_of
from farm.errors import InfrastructureError, NobodyCanServe, NotFound, UnsupportedFunction
from farm.rpc import digest_from_proto, digest_to_proto, error_from_rpc

DONE, FAILED = build_pb2.ITEM_STATE_DONE, build_pb2.ITEM_STATE_FAILED


def test_build_of_two_targets_on_two_agents_gives_one_artifact(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("x86-builder", builds=("llvm/x86_64",))
            await farm.peer("arm-builder", builds=("llvm/aarch64",))
            items = await farm.client.items(
                (targets["x86"], "add"), (targets["arm"], "add"), (targets["arm"], "mul")
            )
            result, events = await farm.client.build_all(items)
            assert [(it.state, it.agent_id, it.cached) for it in result.items] == [
                (DONE, "x86-builder", False),
                (DONE, "arm-builder", False),
                (DONE, "arm-builder", False),
            ]
            assert {it.seconds for it in result.items} == {0.25}
            states = [it.state for it in events if it.index == 2]
            assert states == [
                build_pb2.ITEM_STATE_QUEUED,
                build_pb2.ITEM_STATE_BUILDING,
                DONE,
            ]
            data = await farm.client.get(digest_from_proto(result.artifact))
            artifact = Artifact.from_bytes(data)
            assert {(it.symbol, it.kind, it.target) for it in artifact.sections} == {
                ("add", "device", targets["x86"]),
                ("add", "device", targets["arm"]),
                ("mul", "device", targets["arm"]),
            }

    run_async(body)


def test_build_asked_twice_is_served_from_the_cache_with_the_same_digest(
    start_farm, run_async, targets
):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("builder", builds=("llvm/x86_64",))
            items = await farm.client.items((targets["x86"], "add"), (targets["x86"], "mul"))
            first, _ = await farm.client.build_all(items)
            second, events = await farm.client.build_all(list(reversed(items)))
            assert second.artifact == first.artifact
            assert [(it.state, it.cached) for it in second.items] == [(DONE, True)] * 2
            assert events == []  # the result says it all
            assert sorted(peer.compiled) == ["add", "mul"]

    run_async(body)


def test_cache_entry_whose_blob_is_gone_is_built_again(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("builder", builds=("llvm/x86_64",))
            items = await farm.client.items((targets["x86"], "add"))
            first, _ = await farm.client.build_all(items)
            data = await farm.client.get(digest_from_proto(first.artifact))
            (section,) = Artifact.from_bytes(data).sections
            farm.server.blobs.path(digest_of(section.data)).unlink()
            second, _ = await farm.client.build_all(items)
            assert second.artifact == first.artifact
            assert [it.cached for it in second.items] == [False]
            assert peer.compiled == ["add", "add"]

    run_async(body)


def test_builds_of_equal_items_at_once_compile_once(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("builder", builds=("llvm/x86_64",))
            go, compile_ = asyncio.Event(), peer.compile

            async def slow(task):
                await go.wait()
                return await compile_(task)

            peer.compile = slow
            items = await farm.client.items((targets["x86"], "add"))
            both = [asyncio.create_task(farm.client.build_all(items)) for _ in range(2)]
            async with asyncio.timeout(60):
                while len(farm.server.tracker.state.jobs) < 2:
                    await asyncio.sleep(0.01)
            go.set()
            (first, _), (second, _) = await asyncio.gather(*both)
            assert first.artifact == second.artifact
            assert first.artifact.sha256
            assert peer.compiled == ["add"]

    run_async(body)


def test_build_whose_agent_dies_is_retried_on_another(start_farm, forgetful, run_async, targets):
    async def body() -> None:
        async with start_farm(limits=forgetful) as farm:
            never = asyncio.Event()

            async def hang(task):
                await never.wait()

            dying = await farm.peer("a-dying", builds=("llvm/x86_64",), compile=hang)
            items = await farm.client.items((targets["x86"], "add"))
            build = asyncio.create_task(farm.client.build_all(items))
            async with asyncio.timeout(60):
                while not dying.compiled:
                    await asyncio.sleep(0.01)
            other = await farm.peer("b-other", builds=("llvm/x86_64",))
            await dying.stop()
            result, events = await build
            assert [(it.state, it.agent_id) for it in result.items] == [(DONE, "b-other")]
            assert [it.agent_id for it in events] == ["", "a-dying", "", "b-other", "b-other"]
            assert other.compiled == ["add"]

    run_async(body)


def test_build_restarted_agent_process_gets_the_item_again(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:
            never = asyncio.Event()

            async def hang(task):
                await never.wait()

            old = await farm.peer("agent", "p1", builds=("llvm/x86_64",), compile=hang)
            items = await farm.client.items((targets["x86"], "add"))
            build = asyncio.create_task(farm.client.build_all(items))
            async with asyncio.timeout(60):
                while not old.compiled:
                    await asyncio.sleep(0.01)
            await farm.peer("agent", "p2", builds=("llvm/x86_64",))
            result, _ = await build
            assert [it.state for it in result.items] == [DONE]
            error = await old.ended
            assert error is not None
            assert error.code == "FENCED"

    run_async(body)


def test_build_error_of_the_function_is_data_and_not_retried(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("builder", builds=("llvm/x86_64",))
            compile_ = peer.compile

            async def fail_mul(task):
                if task.item.symbol == "mul":
                    return UnsupportedFunction("mul: cannot be compiled; place it elsewhere")
                return await compile_(task)

            peer.compile = fail_mul
            items = await farm.client.items((targets["x86"], "mul"), (targets["x86"], "add"))
            result, _ = await farm.client.build_all(items, keep_going=True)
            assert [(it.state, it.error.code) for it in result.items] == [
                (FAILED, "UNSUPPORTED_FUNCTION"),
                (DONE, ""),
            ]
            assert not result.HasField("artifact")
            assert sorted(peer.compiled) == ["add", "mul"]
            again, _ = await farm.client.build_all(items, keep_going=True)
            assert [it.cached for it in again.items] == [False, True]

    run_async(body)


def test_build_without_keep_going_gives_up_the_other_items(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:

            async def fail(task):
                return UnsupportedFunction("bad: cannot be compiled; place it elsewhere")

            peer = await farm.peer("builder", builds=("llvm/x86_64",), slots=1, compile=fail)
            items = await farm.client.items(*((targets["x86"], f"f{i}") for i in range(3)))
            result, _ = await farm.client.build_all(items)
            assert [(it.state, it.error.code) for it in result.items] == [
                (FAILED, "UNSUPPORTED_FUNCTION"),
                (FAILED, "CANCELLED"),
                (FAILED, "CANCELLED"),
            ]
            assert peer.compiled == ["f0"]

    run_async(body)


def test_build_infrastructure_error_is_retried_within_its_budget(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:

            async def fail(task):
                return InfrastructureError("disk: full; try another agent")

            peer = await farm.peer("builder", builds=("llvm/x86_64",), compile=fail)
            items = await farm.client.items((targets["x86"], "add"))
            result, _ = await farm.client.build_all(items)
            assert [it.error.code for it in result.items] == ["INFRASTRUCTURE"]
            assert peer.compiled == ["add"] * 3

    run_async(body)


def test_build_client_that_goes_away_ends_its_own_work(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:
            never = asyncio.Event()

            async def hang(task):
                await never.wait()

            peer = await farm.peer("builder", builds=("llvm/x86_64",), compile=hang)
            items = await farm.client.items((targets["x86"], "add"))
            build = asyncio.create_task(farm.client.build_all(items))
            async with asyncio.timeout(60):
                while not peer.compiled:
                    await asyncio.sleep(0.01)
                build.cancel()
                while peer.attempts:
                    await asyncio.sleep(0.01)
            (job,) = farm.server.tracker.state.jobs.values()
            (unit,) = farm.server.tracker.state.units.values()
            assert (job.state, unit.state) == ("CANCELLED", "CANCELLED")

    run_async(body)


def test_build_for_a_target_that_no_agent_builds_is_refused(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("builder", builds=("llvm/x86_64",))
            items = await farm.client.items((targets["arm"], "add"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.build_all(items)
            error = error_from_rpc(caught.value)
            assert isinstance(error, NobodyCanServe)
            assert "llvm/aarch64" in error.message
            assert "llvm/x86_64" in error.message
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    run_async(body)


def test_build_of_an_absent_function_is_refused(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("builder", builds=("llvm/x86_64",))
            (item,) = await farm.client.items((targets["x86"], "add"))
            item.function.sha256 = "0" * 64
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.build_all([item])
            assert isinstance(error_from_rpc(caught.value), NotFound)

    run_async(body)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda it: setattr(it, "target", "llvm"), "INVALID_TARGET"),
        (lambda it: setattr(it, "target", "nonsense"), "INVALID_TARGET"),
        (lambda it: setattr(it, "symbol", "1bad"), "INVALID_INPUT"),
        (lambda it: setattr(it, "symbol", "other"), "INVALID_FUNCTION"),
        (lambda it: setattr(it, "kind", 0), "INVALID_INPUT"),
        (lambda it: setattr(it.function, "sha256", "XYZ"), "INVALID_INPUT"),
    ],
)
def test_build_request_that_is_malformed_is_refused(start_farm, run_async, targets, change, code):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("builder", builds=("llvm/x86_64",))
            (item,) = await farm.client.items((targets["x86"], "add"))
            change(item)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.build_all([item])
            assert error_from_rpc(caught.value).code == code
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run_async(body)


def test_agents_are_listed_with_what_they_build(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("b", builds=("llvm/x86_64", "ea"), device_ids=("dev0",))
            await farm.peer("a")
            response = await farm.client.devices.ListAgents(device_pb2.ListAgentsRequest())
            assert [
                (
                    it.agent_id,
                    it.observed,
                    list(it.builds),
                    list(it.device_ids),
                    it.hosted_by,
                    it.host,
                )
                for it in response.agents
            ] == [
                ("a", device_pb2.OBSERVED_ONLINE, [], [], "test", "here"),
                ("b", device_pb2.OBSERVED_ONLINE, ["ea", "llvm/x86_64"], ["dev0"], "test", "here"),
            ]

    run_async(body)


def test_blob_that_is_corrupt_in_the_store_is_reported_once_then_absent(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            digest = await farm.client.function("f")
            path = farm.server.blobs.path(digest)
            path.write_bytes(bytes(len(path.read_bytes())))
            request = blob_pb2.ReadRequest(digest=digest_to_proto(digest))
            codes = []
            for _ in range(2):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in farm.client.blobs.Read(request):
                        pass
                codes.append(caught.value.code())
            assert codes == [grpc.StatusCode.DATA_LOSS, grpc.StatusCode.NOT_FOUND]

    run_async(body)


def test_small_functions_and_objects_travel_with_what_names_them(start_farm, run_async, targets):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("builder", builds=("llvm/x86_64",), slots=1)
            compile_, tasks = peer.compile, []
            again = asyncio.Event()

            async def inside(task):
                tasks.append(task)
                if len(tasks) == 1:
                    await again.wait()
                module = await compile_(task)
                module.data = b"object of " + task.item.code
                module.object.CopyFrom(digest_to_proto(digest_of(module.data)))
                return module

            wanted = []
            want = peer._want
            peer.compile = inside
            peer._want = lambda desired: (wanted.append(desired), want(desired))
            codes = [ir_pb2.Function(name=it).SerializeToString() for it in ("add", "mul")]
            request = build_pb2.BuildRequest(request_key="k", target_host=targets["x86"])
            for name, code in zip(("add", "mul"), codes, strict=True):
                request.items.add(
                    kind=build_pb2.ITEM_KIND_DEVICE,
                    target=targets["x86"],
                    symbol=name,
                    function=digest_to_proto(digest_of(code)),
                    code=code,
                )
            call = farm.client.build.Build(request, timeout=60)
            await until(lambda: tasks)
            farm.server.tracker.links.push(desired_again(farm, peer))
            await until(lambda: sum(bool(it.builds) for it in wanted) >= 2)
            again.set()
            events = [event async for event in call]
            assert [it.item.code for it in tasks] == codes
            assert [it.builds[0].item.code for it in wanted if it.builds][:2] == [codes[0], b""]
            result = events[-1].result
            data = await farm.client.get(digest_from_proto(result.artifact))
            assert data == result.data
            objects = [b"object of " + it for it in codes]
            assert [it.data for it in Artifact.from_bytes(data).sections] == objects
            stored = farm.server.blobs
            assert stored.missing(map(digest_of, [*codes, *objects])) == [*map(digest_of, codes)]

    run_async(body)


def desired_again(farm, peer):
    """Return what the tracker wants of an agent, which it was told before."""
    state = farm.server.tracker.state
    (attempt,) = (state.attempts[it] for it in state.agents[peer.agent_id].attempt_ids)
    order = BuildOrder(attempt.attempt_id, state.units[attempt.unit_id].spec, attempt.limit_s)
    return PushDesired(peer.agent_id, peer.instance_id, (order,), ())
