"""Functions that are meant to hurt a compiler: each attempt ends with a typed error, and the builder goes on."""

from __future__ import annotations

import random

from farm.api.v1 import ir_pb2

CPU = "llvm -mtriple=x86_64-linux-gnu"
FAMILY = "llvm/x86_64"


def honest():
    from farm_agents.worker.small import small_function

    return small_function()


def deep(levels):
    """One expression that is nested very deep."""
    function = ir_pb2.Function.FromString(honest())
    value = function.body.for_loop.body.store.value
    for _ in range(levels):
        outer = ir_pb2.Expr(binary=ir_pb2.Binary(op="add", b=ir_pb2.Expr(var="i")))
        outer.binary.a.CopyFrom(value)
        value = outer
    function.body.for_loop.body.store.value.CopyFrom(value)
    return function.SerializeToString(deterministic=True)


def huge_buffer():
    """A buffer that no machine could hold."""
    function = ir_pb2.Function.FromString(honest())
    for param in function.params:
        param.buffer.shape[:] = [1 << 62]
    return function.SerializeToString(deterministic=True)


def noise(seed):
    return random.Random(seed).randbytes(300)


def mutated(seed):
    rng, data = random.Random(seed), bytearray(honest())
    for _ in range(4):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def copies(loops):
    """Unrolled loops, one after the other: small to send, and the compiler's memory grows with each."""
    function = ir_pb2.Function.FromString(honest())
    store = function.body.for_loop.body.store
    index = ir_pb2.Expr()
    index.CopyFrom(store.indices[0])
    block = ir_pb2.Stmt().block
    for number in range(loops):
        index.var = f"i{number}"
        store.indices[0].CopyFrom(index)
        store.value.binary.a.load.indices[0].CopyFrom(index)
        inner = ir_pb2.For(var=index.var, extent=8, kind=ir_pb2.LOOP_KIND_UNROLLED)
        inner.body.store.CopyFrom(store)
        outer = ir_pb2.For(var=f"u{number}", extent=200, kind=ir_pb2.LOOP_KIND_UNROLLED)
        outer.body.for_loop.CopyFrom(inner)
        block.stmts.add().for_loop.CopyFrom(outer)
    function.body.Clear()
    function.body.block.CopyFrom(block)
    return function.SerializeToString(deterministic=True)


HOSTILE = {
    "noise": noise(1),
    "empty": b"\x00",
    "deep": deep(90),
    "huge": huge_buffer(),
    **{f"mutated_{seed}": mutated(seed) for seed in range(6)},
}


def test_hostile_functions_end_in_typed_errors(run_farm, build_task):
    async def story(tracker, spec):
        tasks = [build_task(tracker, n, data, CPU, limit_s=200.0) for n, data in HOSTILE.items()]
        await tracker.want(builds=tasks)

        def ended(name):
            attempt = tracker.attempt(name)
            return attempt and attempt.WhichOneof("outcome") in ("module", "error") and attempt

        for name in HOSTILE:
            attempt = await tracker.until(lambda name=name: ended(name))
            if name in ("noise", "empty", "huge"):
                assert attempt.WhichOneof("outcome") == "error", name
            if attempt.WhichOneof("outcome") == "error":
                assert attempt.error.code in {
                    "INVALID_FUNCTION",
                    "UNSUPPORTED_FUNCTION",
                    "INVALID_INPUT",
                    "BUILD_FAILED",
                }, (name, attempt.error)
        await tracker.want(builds=[build_task(tracker, "good", honest(), CPU)])
        good = await tracker.until(lambda: ended("good"))
        assert good.WhichOneof("outcome") == "module"

    run_farm(story, devices=(), builds=(FAMILY,))


def test_function_whose_compilation_eats_memory_ends_at_the_limit_and_harms_nobody(
    run_farm, build_task, monkeypatch
):
    # The limit of a real agent takes minutes to fill; what happens at it is the same.
    monkeypatch.setattr("farm_agents.sandbox.limits.MAX_MEMORY_BYTES", 64 << 20)

    async def story(tracker, spec):
        bomb = build_task(tracker, "bomb", copies(200), CPU, limit_s=280.0)
        good = build_task(tracker, "good", honest(), CPU)
        await tracker.want(builds=[bomb, good])

        def ended(name):
            attempt = tracker.attempt(name)
            return attempt and attempt.WhichOneof("outcome") in ("module", "error") and attempt

        done = await tracker.until(lambda: ended("good"))
        assert done.WhichOneof("outcome") == "module"
        error = (await tracker.until(lambda: ended("bomb"), limit_s=280)).error
        assert (error.code, error.details["limit"]) == ("BUILD_FAILED", "memory")
        again = build_task(tracker, "again", honest(), CPU)
        await tracker.want(builds=[again])
        assert (await tracker.until(lambda: ended("again"))).WhichOneof("outcome") == "module"

    run_farm(story, devices=(), builds=(FAMILY,), slots=2)
