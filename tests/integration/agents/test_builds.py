"""Builds of an agent over real gRPC: outcomes, limits, crashes, and results that stay until they are dropped."""

from __future__ import annotations

import os
import signal

import pytest
from farm_agents.worker.small import small_function

from farm.api.v1 import ir_pb2
from farm.artifact import BuiltModule, Signature, assemble
from farm.core.digest import digest_of
from farm.core.wire import digest_from_proto
from farm.ir import serialise
from farm.ir.declaration import functions_of
from farm.target import Target

CPU = str(Target.parse("llvm"))
FAMILY = Target.parse("llvm").family


def slow_function(statements=12000):
    """A function that takes a compiler long: very many dependent stores in a row."""
    function = ir_pb2.Function.FromString(small_function())
    body = function.body.for_loop.body
    many = ir_pb2.Stmt(block=ir_pb2.Block(stmts=[body] * statements))
    function.body.for_loop.body.CopyFrom(many)
    return function.SerializeToString(deterministic=True)


def finished(tracker, attempt_id):
    attempt = tracker.attempt(attempt_id)
    return attempt if attempt and attempt.WhichOneof("outcome") != "running" else None


def large_function():
    """A function whose object is larger than what travels with a report: it has a table of 80,000 bytes."""
    table = "".join(f"\\{number * 37 % 251:02x}" for number in range(80_000))
    text = f"""; farm: small(x: int32[4] inout)
@table = private constant [80000 x i8] c"{table}"
define void @small(ptr %x) {{
  %at = load i32, ptr %x
  %place = getelementptr i8, ptr @table, i32 %at
  %value = load i8, ptr %place
  %wide = zext i8 %value to i32
  store i32 %wide, ptr %x
  ret void
}}
"""
    (function,) = functions_of("large.ll", text.encode())
    return serialise(function)


@pytest.mark.parametrize("is_small", [True, False], ids=["small", "large"])
@pytest.mark.parametrize("comes_along", [True, False], ids=["with its order", "from the store"])
def test_build_gives_a_module_with_its_object_or_one_that_is_in_the_store(
    run_farm, build_task, is_small, comes_along
):
    async def story(tracker, spec):
        code = small_function() if is_small else large_function()
        task = build_task(tracker, "t1", code, CPU, symbol="small")
        if comes_along:
            task.item.code = code
            tracker.blobs.data.clear()
        await tracker.want(builds=[task])
        attempt = await tracker.until(lambda: finished(tracker, "t1"))
        assert attempt.WhichOneof("outcome") == "module", attempt
        assert attempt.seconds > 0
        module = attempt.module
        named = digest_from_proto(module.object)
        assert (named in tracker.blobs.data, bool(module.data)) == (not is_small, is_small)
        data = module.data if is_small else tracker.blobs.data[named]
        assert digest_of(data) == named
        built = BuiltModule(
            kind="device",
            symbol="small",
            target=CPU,
            format=module.format,
            format_version=module.format_version,
            requires=tuple(module.requires),
            toolchain=module.toolchain,
            signature=Signature.from_json(module.signature),
            data=data,
        )
        assert assemble(CPU, [built]).symbols.keys() == {"small"}
        assert list((spec.work_dir / "builds").iterdir()) == []
        # Finished attempts stay until the tracker drops them.
        await tracker.want(builds=[])
        await tracker.until(lambda: tracker.attempt("t1") is None)

    run_farm(story, devices=(), builds=(FAMILY,))


def test_build_same_function_twice_gives_the_same_object(run_farm, build_task):
    async def story(tracker, spec):
        tasks = [
            build_task(tracker, name, small_function(), CPU, symbol="small")
            for name in ("t1", "t2")
        ]
        await tracker.want(builds=tasks)
        first = await tracker.until(lambda: finished(tracker, "t1"))
        second = await tracker.until(lambda: finished(tracker, "t2"))
        assert first.module == second.module

    run_farm(story, devices=(), builds=(FAMILY,), slots=2)


def test_build_that_cannot_be_done_is_an_error_of_the_attempt(run_farm, build_task):
    wrong = {
        "t1": (b"\xff", CPU, "INVALID_FUNCTION"),
        "t2": (small_function(), "llvm -nonsense=1", "INVALID_TARGET"),
        "t3": (small_function(), "elsewhere -config=one", "INFRASTRUCTURE"),
        "t4": (small_function(), "llvm -mtriple=wasm32-wasi", "INFRASTRUCTURE"),
    }

    async def story(tracker, spec):
        tasks = [build_task(tracker, name, *it[:2]) for name, it in wrong.items()]
        await tracker.want(builds=tasks)
        for name, (_, _, code) in wrong.items():
            attempt = await tracker.until(lambda name=name: finished(tracker, name))
            assert (attempt.WhichOneof("outcome"), attempt.error.code) == ("error", code)

    run_farm(story, devices=(), builds=(FAMILY,))


def test_build_of_an_absent_function_is_an_error_of_the_attempt(run_farm, build_task):
    async def story(tracker, spec):
        task = build_task(tracker, "t1", small_function(), CPU)
        tracker.blobs.data.clear()
        await tracker.want(builds=[task])
        attempt = await tracker.until(lambda: finished(tracker, "t1"))
        assert attempt.error.code == "NOT_FOUND"

    run_farm(story, devices=(), builds=(FAMILY,))


def test_build_past_its_limit_is_killed_and_the_builder_goes_on(run_farm, build_task, tree):
    async def story(tracker, spec):
        slow = build_task(tracker, "slow", slow_function(), CPU, limit_s=0.2)
        await tracker.want(builds=[slow])
        attempt = await tracker.until(lambda: finished(tracker, "slow"))
        assert attempt.error.code == "TIME_LIMIT"
        assert len(tree.zygotes()) == 1
        assert tree.workers() == []
        good = build_task(tracker, "good", small_function(), CPU)
        await tracker.want(builds=[good])
        assert (await tracker.until(lambda: finished(tracker, "good"))).module.object.size_bytes > 0

    run_farm(story, devices=(), builds=(FAMILY,))


def test_build_whose_compiler_dies_is_an_error_of_the_attempt(run_farm, build_task, tree):
    async def story(tracker, spec):
        await tracker.want(builds=[build_task(tracker, "t1", slow_function(), CPU)])
        (child,) = await tracker.until(tree.workers)
        os.kill(child, signal.SIGSEGV)
        attempt = await tracker.until(lambda: finished(tracker, "t1"))
        assert attempt.error.code == "BUILD_FAILED"
        assert dict(attempt.error.details) == {"signal": "SIGSEGV"}

    run_farm(story, devices=(), builds=(FAMILY,))


def test_build_that_is_no_longer_wanted_is_killed(run_farm, build_task, tree):
    async def story(tracker, spec):
        await tracker.want(builds=[build_task(tracker, "t1", slow_function(), CPU)])
        await tracker.until(tree.workers)
        await tracker.want(builds=[])
        await tracker.until(lambda: not tree.workers())
        await tracker.until(lambda: tracker.attempt("t1") is None)

    run_farm(story, devices=(), builds=(FAMILY,))


def test_builds_beyond_the_slots_wait(run_farm, build_task, tree):
    async def story(tracker, spec):
        tasks = [build_task(tracker, f"t{i}", slow_function(3000 + i), CPU) for i in range(3)]
        await tracker.want(builds=tasks)
        most = 0

        def all_done():
            nonlocal most
            most = max(most, len(tree.workers()))
            return all(finished(tracker, f"t{i}") for i in range(3))

        await tracker.until(all_done)
        assert most == 2

    run_farm(story, devices=(), builds=(FAMILY,), slots=2)
