"""Measuring many candidates on one device: how many a second, where the time goes, what a very slow one costs.

Candidates are 512³ products of float32 with the default schedule, each a build of its own; they are built before the
clock starts, so that it is about measuring alone.

Figures: ``measure_rate`` (1/s), ``measure_idle_gap`` (part of the time in which no candidate's process works for it),
``measure_slow`` (time with one candidate that is 1,000 times slower, against without), ``measure_memory_agent``,
``measure_memory_tracker`` and ``measure_memory_client`` (MiB that a process grew by over 2,000 candidates, after a
quarter of that number). Peer: the same candidates, each as a job of its own (`farm submit --repeat`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from support.figures import emit

import farm
from farm import ops, te
from farm.artifact import Artifact
from farm.client import Candidate, Client, Measured, Workload
from farm.measuring import Options, Status
from farm.ops.schedules import scheduled
from farm.testing import EmbeddedFarm
from farm.testing.agents import AgentPlan

sys.path.insert(0, str(Path(__file__).parents[1]))
import candidates

SIZE = 512
CPU = "kind=cpu"
OPTIONS = Options()
MEMORY_CANDIDATES = 2000


def product(name: str) -> te.Function:
    """Return the workload."""
    a = te.placeholder((SIZE, SIZE), "float32", name="a")
    b = te.placeholder((SIZE, SIZE), "float32", name="b")
    return te.function(name, [a, b, ops.matmul(a, b)])


def measure(
    client: Client, artifacts: Sequence[Artifact], workload: Workload, options: Options = OPTIONS
) -> tuple[list[Measured], float]:
    """Return results, and how long all took in seconds, the first aside: it waits for the reference."""
    given = [Candidate(str(number), artifact) for number, artifact in enumerate(artifacts)]
    results = client.measure(
        given, workload=workload, selector=CPU, options=options, builds_ahead=8
    )
    found = [next(results)]
    began = time.perf_counter()
    found += results
    return found, time.perf_counter() - began


def rate(client: Client, count: int) -> None:
    """Measure good candidates."""
    functions = [scheduled(product(f"product{n}"), "llvm") for n in range(count)]
    artifacts = [farm.build({"llvm": function}) for function in functions]
    found, took_s = measure(client, artifacts, Workload(reference=product("product")))
    assert all(it.status is Status.OK for it in found), [it.error for it in found if it.error]
    assert all(it.measurement.checked for it in found)
    phases: dict[str, list[float]] = {}
    for it in found[1:]:
        for name, value in it.measurement.phases.items():
            phases.setdefault(name, []).append(value)
    busy_s = sum(sum(values) for values in phases.values())
    began = time.perf_counter()
    arrays = [np.ones((SIZE, SIZE), np.float32)] * 2
    jobs = [
        client.submit(artifact, f"product{n}", arrays, selector=CPU, repeat=10)
        for n, artifact in enumerate(artifacts)
    ]
    for job in jobs:
        job.result(600)
    peer_s = time.perf_counter() - began
    emit(
        "measure_rate",
        (count - 1) / took_s,
        "1/s",
        goal=">= 15",
        samples=count,
        lower_is_better=False,
        peer="a job each, without checks or warming up",
        peer_value=count / peer_s,
    )
    emit(
        "measure_idle_gap",
        100 * (1 - busy_s / took_s),
        "%",
        goal="< 10",
        samples=count,
        lower_is_better=True,
    )
    for name, values in phases.items():
        emit(
            f"measure_phase_{name}",
            1e3 * statistics.median(values),
            "ms",
            goal="none",
            samples=len(values),
            lower_is_better=True,
            spread=[1e3 * value for value in values],
        )


def slow(client: Client, count: int) -> None:
    """Measure candidates among which one is a thousand times slower."""
    quick = [candidates.artifact("right", candidates.BODIES["right"])] * count
    body = candidates.loop(0, candidates.COUNT, repeats="1000")
    bad = candidates.artifact("bad", body)
    worse = candidates.artifact("worse", candidates.loop(0, candidates.COUNT, repeats="1000000"))
    workload = Workload(reference=candidates.twice())
    for name, one in (("measure_slow", bad), ("measure_very_slow", worse)):
        ratios = []
        for place in (count // 4, count // 2, 3 * count // 4):
            found, _ = measure(client, [*quick[:place], one, *quick[place:]], workload)
            assert sorted({it.status for it in found}) == [Status.OK, Status.SLOW]
            usual = [it.seconds["device"] for it in found[1:] if it.status is Status.OK]
            (lost,) = (it.seconds["device"] for it in found if it.status is Status.SLOW)
            # Of one run: two runs differ by more than that on a busy machine.
            ratios.append((sum(usual) + lost) / (sum(usual) + statistics.median(usual)))
        emit(
            name,
            statistics.median(ratios),
            "ratio",
            goal="<= 1.1",
            samples=count,
            lower_is_better=True,
        )


def memory(client: Client, pids: Mapping[str, int], count: int) -> None:
    """Measure many candidates and look at what the farm and this process grew by."""
    artifact = candidates.artifact("right", candidates.BODIES["right"])
    workload = Workload(reference=candidates.twice())
    options = Options(samples=3, sample_s=0.0005, warm_up_s=0.01)

    def run(number: int) -> None:
        given = (Candidate(str(n), artifact) for n in range(number))
        for it in client.measure(given, workload=workload, selector=CPU, options=options):
            assert it.status is Status.OK, it.error

    processes = {**pids, "client": os.getpid()}
    run(count // 4)
    before = {name: _memory_bytes(pid) for name, pid in processes.items()}
    run(count)
    for name, pid in processes.items():
        emit(
            f"measure_memory_{name}",
            (_memory_bytes(pid) - before[name]) / 2**20,
            "MiB",
            goal="<= 5",
            samples=count,
            lower_is_better=True,
        )


def _memory_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(it for it in text.splitlines() if it.startswith("VmRSS")).split()[1])


def main() -> None:
    """Measure, and print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--memory", type=int, default=MEMORY_CANDIDATES)
    args = parser.parse_args()
    plan = AgentPlan("measure-bench", ("llvm/x86_64",), ("cpu",))
    with (
        EmbeddedFarm("processes", plans=(plan,)) as running,
        farm.connect(running.address) as client,
    ):
        rate(client, args.candidates)
        slow(client, args.candidates)
        pids = {name.partition("-")[0]: pid for name, pid in running.pids.items()}
        memory(client, pids, args.memory)


if __name__ == "__main__":
    main()
