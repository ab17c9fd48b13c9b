"""How fast functions are built: in one process, over a farm with one and two builders, and from the cache.

Figures: ``build_one_process``, ``build_farm_1``, ``build_farm_2``, ``build_cached`` (functions/s) and
``builder_memory`` (MiB by which a farm's builder grows from build 200 to build 2,000). Peer: ``tvm.compile``, one
function after the other in one process.

Each function is a layer, ``relu(x @ w)``, of a shape of its own. In one process ours and the peer's take turns and time
is CPU time; over the farm it is wall time, so that it says little on a busy machine.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
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


def tiny(number: int) -> Function:
    """Return a function that takes next to no time to build."""
    x = te.placeholder((8,), "int32", name="x")
    return te.function(f"tiny_{number}", [x, te.compute((8,), lambda i: x[i] + number, name="y")])


def memory() -> None:
    """Print by how much a farm's builder, all its processes together, grows from build 200 to the last.

    Each build runs in a child that ends with it. In one process memory grows: LLVM's pass managers, as llvmlite makes
    them, leave some 70 KiB a build.
    """
    plan = AgentPlan("builder", ("llvm/x86_64",), ())
    with (
        EmbeddedFarm("processes", plans=(plan,)) as running,
        farm.connect(running.address) as client,
    ):
        sizes = []
        for first in range(0, MEMORY_BUILDS, 200):
            client.build({"llvm": [tiny(first + number) for number in range(200)]})
            sizes.append(_resident_bytes(_descendants(os.getpid(), "farm_agents")))
    emit(
        "builder_memory",
        (sizes[-1] - sizes[0]) / (1 << 20),
        "MiB",
        goal="<= 4 (flat)",
        samples=MEMORY_BUILDS,
        lower_is_better=True,
    )


def _descendants(parent: int, module: str) -> list[int]:
    """Return the processes below one whose command line names a module."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            after_name = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    found, pending = [], [parent]
    while pending:
        below = children.get(pending.pop(), [])
        pending += below
        found += [pid for pid in below if module in _command(pid)]
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _resident_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total * resource.getpagesize()


def main() -> None:
    """Measure all in one run; names of figures as arguments choose some."""
    wanted = set(sys.argv[1:])
    peer = one_process() if not wanted or "build_one_process" in wanted else None
    for builders in (1, 2):
        if not wanted or f"build_farm_{builders}" in wanted:
            over_the_farm(builders, peer)
    if not wanted or "builder_memory" in wanted:
        memory()


if __name__ == "__main__":
    main()
