"""What a build comes to if the agent's own files fail it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from farm_agents.builder import DYING, Builder, _attempt
from farm_agents.state.model import BuildOrder
from farm_agents.worker import build as worker
from farm_agents.worker.blobs import keep_blob, read_blob
from farm_agents.worker.small import small_function

from farm.api.v1 import agent_pb2, build_pb2
from farm.core.digest import digest_of
from farm.core.limits import MAX_INLINE_OBJECT_BYTES
from farm.core.wire import digest_from_proto, digest_to_proto
from farm.errors import BuildFailed

FUNCTION = digest_of(b"function")


def test_full_disk_under_a_compiler_is_the_farms_fault(tmp_path, monkeypatch):
    def full(out, data):
        raise OSError(28, "No space left on device")

    item = build_pb2.BuildItem(
        kind=build_pb2.ITEM_KIND_DEVICE,
        target="llvm",
        symbol="small",
        function=digest_to_proto(keep_blob(tmp_path, small_function())),
    )
    task = agent_pb2.BuildTask(attempt_id="u.1", item=item, limit_s=10.0)
    assert worker.compile_task(task, tmp_path, tmp_path).WhichOneof("outcome") == "module"
    monkeypatch.setattr(worker, "keep_blob", full)
    monkeypatch.setattr(worker, "MAX_INLINE_OBJECT_BYTES", 0)
    attempt = worker.compile_task(task, tmp_path, tmp_path)
    assert attempt.error.code == "INFRASTRUCTURE"
    assert "No space left on device" in attempt.error.message


def task_of(code, function):
    item = build_pb2.BuildItem(
        kind=build_pb2.ITEM_KIND_DEVICE,
        target="llvm",
        symbol="small",
        function=digest_to_proto(function),
        code=code,
    )
    return agent_pb2.BuildTask(attempt_id="u.1", item=item, limit_s=10.0)


def test_function_that_comes_with_its_task_needs_no_file_and_small_objects_make_none(tmp_path):
    code = small_function()
    attempt = worker.compile_task(task_of(code, digest_of(code)), tmp_path, tmp_path)
    assert digest_to_proto(digest_of(attempt.module.data)) == attempt.module.object
    assert attempt.module.data.startswith(b"\x7fELF")
    assert list(tmp_path.iterdir()) == []


def test_large_object_is_a_file(tmp_path, monkeypatch):
    code = small_function()
    task = task_of(code, digest_of(code))
    inside = worker.compile_task(task, tmp_path, tmp_path).module
    monkeypatch.setattr(worker, "MAX_INLINE_OBJECT_BYTES", len(inside.data) - 1)
    module = worker.compile_task(task, tmp_path, tmp_path).module
    assert (module.data, module.object) == (b"", inside.object)
    assert read_blob(tmp_path, digest_from_proto(module.object)) == inside.data


def test_function_that_is_not_what_its_task_names_is_not_compiled(tmp_path):
    attempt = worker.compile_task(task_of(small_function(), FUNCTION), tmp_path, tmp_path)
    assert attempt.error.code == "INFRASTRUCTURE"
    assert "not its function" in attempt.error.message


@pytest.mark.parametrize("data", [b"another", b"o" * (MAX_INLINE_OBJECT_BYTES + 1)])
def test_compiler_whose_object_is_not_what_it_says_is_not_believed(data):
    attempt = agent_pb2.BuildAttempt(attempt_id="u.1")
    named = digest_of(b"object") if data == b"another" else digest_of(data)
    attempt.module.object.CopyFrom(digest_to_proto(named))
    attempt.module.data = data
    with pytest.raises(BuildFailed, match="not what it says"):
        _attempt(order(1), attempt.SerializeToString())


class FakeChild:
    """A child of a zygote that dies when it is let."""

    def __init__(self, answered, sandbox):
        self.answered, self.sandbox = answered, sandbox
        self.asked, self.gone = asyncio.Event(), asyncio.Event()

    async def kill(self):
        self.asked.set()
        await self.gone.wait()
        return 9


def builder_of(children, monkeypatch, tmp_path, compiled, **cache):
    """A builder with one slot whose zygote gives these children."""

    async def fork(config):
        return children.pop(0)

    async def close():
        for child in given:
            child.gone.set()

    async def zygote(builder):
        builder._zygote = SimpleNamespace(fork=fork, close=close)
        return builder._zygote

    async def fetched(digest):
        pass

    given = list(children)
    monkeypatch.setattr(Builder, "zygote", zygote)
    monkeypatch.setattr(Builder, "_compile", compiled)
    cache = SimpleNamespace(fetch=fetched, root=tmp_path, **cache)
    return Builder(("llvm/x86_64",), cache, tmp_path, None, None, 1)


def order(number):
    target = "llvm -mtriple=x86_64-linux-gnu"
    return BuildOrder(f"u.{number}", "device", target, "f", FUNCTION, 10.0)


async def refused(builder, child, order, stack):
    attempt = agent_pb2.BuildAttempt(attempt_id=order.attempt_id)
    attempt.error.code = "UNSUPPORTED"
    return attempt, None


@pytest.mark.parametrize(("answered", "sandbox"), [(False, "room"), (True, None)])
def test_attempt_ends_after_its_processes_unless_a_confined_compiler_answered(
    answered, sandbox, tmp_path, monkeypatch
):
    async def main():
        child = FakeChild(answered, sandbox)
        builder = builder_of([child], monkeypatch, tmp_path, refused)
        building = asyncio.create_task(builder.build(order(1), lambda _: None))
        async with asyncio.timeout(60):
            await child.asked.wait()
        assert not building.done()
        building.cancel()  # does not shorten it
        await asyncio.sleep(0)
        assert not building.done()
        child.gone.set()
        with pytest.raises(asyncio.CancelledError):
            await building

    asyncio.run(main())


def test_next_attempts_begin_while_rooms_before_them_die_until_there_are_too_many(
    tmp_path, monkeypatch
):
    async def main():
        children = [FakeChild(True, "room") for _ in range(DYING + 1)]
        *dying, last = children
        builder = builder_of(children, monkeypatch, tmp_path, refused)
        async with asyncio.timeout(60):
            for number, child in enumerate(dying):
                await builder.build(order(number), lambda _: None)
                await child.asked.wait()
            waiting = asyncio.create_task(builder.build(order(DYING), lambda _: None))
            while not (tmp_path / "builds" / f"u.{DYING}").exists():
                await asyncio.sleep(0)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(builder._dying) == DYING
            assert not waiting.done()
            dying[0].gone.set()
            await waiting
            await last.asked.wait()
            await builder.close()  # waits for them
        assert last.gone.is_set()
        assert not builder._dying

    asyncio.run(main())


@pytest.mark.parametrize("named", [FUNCTION.sha256, digest_of(b"another").sha256])
def test_function_that_is_damaged_in_the_cache_is_fetched_again_by_the_next_attempt(
    tmp_path, monkeypatch, named
):
    async def compiled(builder, child, order, stack):
        attempt = agent_pb2.BuildAttempt(attempt_id=order.attempt_id)
        attempt.error.code = "INFRASTRUCTURE"
        attempt.error.details["blob"] = named
        return attempt, None

    forgotten = []

    async def main():
        child = FakeChild(True, None)
        child.gone.set()
        builder = builder_of([child], monkeypatch, tmp_path, compiled, forget=forgotten.append)
        await builder.build(order(1), lambda _: None)

    asyncio.run(main())
    assert forgotten == ([FUNCTION] if named == FUNCTION.sha256 else [])
