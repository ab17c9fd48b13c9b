"""What a build comes to if the agent's own files fail it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from farm_agents.builder import Builder
from farm_agents.state.model import BuildOrder
from farm_agents.worker import build as worker
from farm_agents.worker.blobs import keep_blob
from farm_agents.worker.small import small_function

from farm.api.v1 import agent_pb2, build_pb2
from farm.core.digest import digest_of
from farm.core.wire import digest_to_proto

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
    attempt = worker.compile_task(task, tmp_path, tmp_path)
    assert attempt.error.code == "INFRASTRUCTURE"
    assert "No space left on device" in attempt.error.message


@pytest.mark.parametrize("named", [FUNCTION.sha256, digest_of(b"another").sha256])
def test_function_that_is_damaged_in_the_cache_is_fetched_again_by_the_next_attempt(
    tmp_path, monkeypatch, named
):
    async def fetched(digest):
        pass

    async def zygote(builder):
        pass

    async def compiled(builder, zygote, order, folder, stack):
        attempt = agent_pb2.BuildAttempt(attempt_id=order.attempt_id)
        attempt.error.code = "INFRASTRUCTURE"
        attempt.error.details["blob"] = named
        return attempt, None

    monkeypatch.setattr(Builder, "zygote", zygote)
    monkeypatch.setattr(Builder, "_compile", compiled)
    forgotten = []
    cache = SimpleNamespace(fetch=fetched, forget=forgotten.append)
    builder = Builder(("llvm/x86_64",), cache, tmp_path, None, None, 1)
    order = BuildOrder("u.1", "device", "llvm -mtriple=x86_64-linux-gnu", "f", FUNCTION, 10.0)
    asyncio.run(builder.build(order, lambda _: None))
    assert forgotten == ([FUNCTION] if named == FUNCTION.sha256 else [])
