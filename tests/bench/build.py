"""How fast functions are built: in one process, over a farm with one and two builders, and from the cache.

Figures: ``build_one_process``, ``build_farm_1``, ``build_farm_2``, ``build_cached`` (functions/s) and
``builder_memory`` (MiB by which a process grows from build 200 to build 2,000). Peer: ``tvm.compile``, one function
after the other in one process.

Each function is a layer, ``relu(x @ w)``, of a shape of its own. In one process ours and the peer's take turns and time
is CPU time; over the farm it is wall time, so that it says little on a busy machine.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from support.figures import emit

import farm
from farm import Target, te
from farm.codegen import compile_function
from farm.ir import Function, serialise
from farm.testing import EmbeddedFarm
from farm.testing.agents import AgentPlan

ALONE = 30
TOGETHER = 60
MEMORY_BUILDS = 2000
_GROWTH = "--growth"


def layer(number: int) -> Function:
    """Return a layer of `number` rows."""
    x = te.placeholder((number, 64), "float32", name="x")
    w = te.placeholder((64, 32), "float32", name="w")
    k = te.reduce_axis(64, "k")
    y = te.compute((number, 32), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="y")
    z = te.compute((number, 32), lambda i, j: te.maximum(y[i, j], 0.0), name="z")
    return te.function(f"layer_{number}", [x, w, z])


def ours() -> Callable[[int], None]:
    """Return what builds the layer of a number of rows here."""
    target = Target.parse("llvm")
    return lambda number: void(compile_function(serialise(layer(number)), "device", target))


def theirs() -> Callable[[int], None] | None:
    """Return the same with TVM; None where it is not installed."""
    try:
        import tvm
        from tvm import te as peer
    except ImportError:
        return None
    tir = tvm.tirx if hasattr(tvm, "tirx") else tvm.tir
    cpu = Target.parse("llvm").option("mcpu")
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})

    def build(number: int) -> None:
        x = peer.placeholder((number, 64), name="x")
        w = peer.placeholder((64, 32), name="w")
        k = peer.reduce_axis((0, 64), name="k")
        y = peer.compute((number, 32), lambda i, j: peer.sum(x[i, k] * w[k, j], axis=k), name="y")
        zero = tir.const(0, "float32")
        z = peer.compute((number, 32), lambda i, j: tir.Max(y[i, j], zero), name="z")
        tvm.compile(peer.create_prim_func([x, w, z]), target=target)

    return build


def void(value: object) -> None:
    """Drop a value."""
    del value


def one_process() -> float | None:
    """Print the rate in one process; return the peer's."""
    mine, peer = ours(), theirs()
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(7, 7 + ALONE):
        for is_peer, build in ((False, mine), (True, peer)):
            if build is not None:
                began = time.process_time()
                build(number)
                times[is_peer].append(time.process_time() - began)
    rates = {who: 1 / statistics.median(t[1:]) if t else None for who, t in times.items()}
    emit(
        "build_one_process",
        rates[False] or 0.0,
        "functions/s",
        goal="ratio >= 2",
        samples=ALONE - 1,
        lower_is_better=False,
        peer="tvm.compile" if rates[True] else None,
        peer_value=rates[True],
        spread=[1 / t for t in times[False][1:]],
    )
    return rates[True]


def over_the_farm(builders: int, peer: float | None) -> None:
    """Print the rate over a farm, cold and (with one builder) from the cache."""
    plans = tuple(
        AgentPlan(f"builder-{number}", ("llvm/x86_64",), ()) for number in range(builders)
    )
    with EmbeddedFarm("processes", plans=plans) as running, farm.connect(running.address) as client:
        client.build({"llvm": [layer(3)]})
        functions = [layer(number) for number in range(100, 100 + TOGETHER)]
        for figure, goal in ((f"build_farm_{builders}", "ratio >= 2"), ("build_cached", ">= 1000")):
            began = time.perf_counter()
            client.build({"llvm": functions})
            rate = TOGETHER / (time.perf_counter() - began)
            if figure != "build_cached" or builders == 1:
                emit(
                    figure,
                    rate,
                    "functions/s",
                    goal=goal,
                    samples=TOGETHER,
                    lower_is_better=False,
                    peer="tvm.compile" if peer else None,
                    peer_value=peer,
                )


def growth() -> None:
    """Print by how many MiB this process grows from the 200th build to the last, as one number."""
    build, at_200 = ours(), 0
    for number in range(MEMORY_BUILDS):
        build(7 + number % 500)
        if number == 200:
            at_200 = _resident_bytes()
    print((_resident_bytes() - at_200) / (1 << 20))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def memory() -> None:
    """Print the figure of `growth`, measured in a process of its own."""
    command = [sys.executable, __file__, _GROWTH]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    emit(
        "builder_memory",
        float(done.stdout),
        "MiB",
        goal="<= 4 (flat)",
        samples=MEMORY_BUILDS,
        lower_is_better=True,
    )


def main() -> None:
    """Measure all in one run; names of figures as arguments choose some."""
    wanted = set(sys.argv[1:])
    if _GROWTH in wanted:
        growth()
        return
    peer = one_process() if not wanted or "build_one_process" in wanted else None
    for builders in (1, 2):
        if not wanted or f"build_farm_{builders}" in wanted:
            over_the_farm(builders, peer)
    if not wanted or "builder_memory" in wanted:
        memory()


if __name__ == "__main__":
    main()
