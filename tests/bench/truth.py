"""Telling the truth on a machine that others use: equal code, and code that is 5 % slower, compared again and again.

While other processes load the machine: how often equal code is called faster or slower (false alarms), how often a true
difference of 5 % is found (right), and how often nothing is said (inconclusive). Beside it, in the same run, what most
tuners do: one candidate after the other, mean of wall time.

Figures: ``compare_false_alarms``, ``compare_right``, ``compare_wrong``, ``compare_inconclusive``, ``compare_s``.
Comparisons are those of ``farm compare``: the worker's own code, in two processes one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
from farm_agents.worker.blobs import Blobs
from farm_agents.worker.compare import interleave
from farm_agents.worker.sampling import Host, Sampler
from farm_agents.worker.subject import Phases, open_subject
from support.figures import emit

from farm.api.v1 import measure_pb2
from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.core.digest import digest_of
from farm.core.wire import digest_to_proto
from farm.measuring import Options, Verdict
from farm.measuring.statistics import compare_parts
from farm.measuring.wire import comparison_from_proto, comparison_to_proto, options_to_proto
from farm.runtime.local import local_capabilities
from farm.runtime.native import native_loader
from farm.target import Target

TURNS = 40_000
DIFFERENCE = 0.05
THRESHOLD = 0.02
ROUNDS = (40, 400)
PROCESSES = 2
SEQUENTIAL_SAMPLES = 30
PEER = "one after the other, mean of wall time"
OPTIONS = Options(samples=3, sample_s=0.001, warm_up_s=0.2, budget_s=5.0, limit_s=60.0)

NOISE = """
import random, sys, time
source, block = random.Random(int(sys.argv[1])), bytearray(16 << 20)
while True:
    until = time.perf_counter() + source.expovariate(1 / 0.03)
    while time.perf_counter() < until:
        block[:] = bytes(len(block))
        sum(range(5000))
    time.sleep(source.expovariate(1 / 0.02))
"""
"""Works for about 30 ms, on memory too, and sleeps for about 20, both at random."""


@contextlib.contextmanager
def noise(count: int) -> Iterator[None]:
    """Have other processes load the machine."""
    command = [sys.executable, "-c", NOISE]
    running = [subprocess.Popen([*command, str(seed)]) for seed in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def kernels(difference: float) -> measure_pb2.ArtifactRef:
    """Return an artifact of ``plain``, and of ``longer``, which does more of the same."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = Target.parse("llvm")
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", opt=1)
    modules = []
    for name, turns in (("plain", TURNS), ("longer", round(TURNS * (1 + difference)))):
        module = llvm.parse_assembly(_code(name, turns))
        module.triple = machine.triple
        modules.append(
            BuiltModule(
                kind="device",
                symbol=name,
                target=str(target),
                format="elf-object",
                format_version=1,
                requires=target.requires,
                toolchain="bench",
                signature=Signature((ParamSpec("y", "int64", (1,), "output"),)),
                data=machine.emit_object(module),
            )
        )
    data = assemble(target, modules).to_bytes()
    return measure_pb2.ArtifactRef(digest=digest_to_proto(digest_of(data)), inline=data)


def _code(name: str, turns: int) -> str:
    """A chain of products: each waits for the one before, so that time follows the number of turns."""
    return f"""
@name_{name} = private constant [{len(name) + 1} x i8] c"{name}\\00"
@entry_{name} = constant {{ ptr, ptr }} {{ ptr @name_{name}, ptr @{name} }}, section "farm_functions"
@llvm.used = appending global [1 x ptr] [ptr @entry_{name}], section "llvm.metadata"
define i32 @{name}(ptr %args, i32 %n) {{
start:
  %tensor = load ptr, ptr %args
  %y = load ptr, ptr %tensor
  br label %again
again:
  %i = phi i64 [0, %start], [%next, %again]
  %value = phi i64 [1, %start], [%more, %again]
  %product = mul i64 %value, 6364136223846793005
  %more = xor i64 %product, %i
  %next = add i64 %i, 1
  %goes_on = icmp ult i64 %next, {turns}
  br i1 %goes_on, label %again, label %done
done:
  store i64 %more, ptr %y
  ret i32 0
}}
"""


def in_child(work: Callable[[], bytes]) -> bytes:
    """Return what `work` gives in a process that is forked for it, on the last core."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        try:
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
            with os.fdopen(write_fd, "wb") as pipe:
                pipe.write(work())
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return data


class Bench:
    """Comparisons of two kernels of an artifact."""

    def __init__(self, difference: float) -> None:
        here = local_capabilities(accelerators=False)
        self._loader = native_loader(here.targets, here.provides)
        self._artifact = kernels(difference)

    def interleaved(self, first: str, other: str) -> Verdict:
        """Return what ``farm compare`` says of `other` against `first`."""
        request = measure_pb2.CompareRequest(
            subjects=[self._subject(first), self._subject(other)],
            options=options_to_proto(replace(OPTIONS, budget_s=OPTIONS.budget_s / PROCESSES)),
            threshold=THRESHOLD,
            min_rounds=ROUNDS[0] // PROCESSES,
            max_rounds=ROUNDS[1] // PROCESSES,
        )
        parts = []
        for _ in range(PROCESSES):
            data = in_child(lambda: self._interleave(request))
            found = comparison_from_proto(measure_pb2.Comparison.FromString(data))
            parts.append([it.samples for it in found.measurements])
            request.context.calls[:] = [samples.calls for samples in parts[0]]
        a, b = ([part[index] for part in parts] for index in (0, 1))
        return compare_parts(a, b, "cpu_ns", THRESHOLD).verdict

    def sequential(self, first: str, other: str) -> Verdict:
        """Return what means of wall time say that were taken one after the other."""
        ratio = struct.unpack("=d", in_child(lambda: self._means(first, other)))[0]
        if ratio < 1 - THRESHOLD:
            return Verdict.FASTER
        return Verdict.SLOWER if ratio > 1 + THRESHOLD else Verdict.SAME

    def _interleave(self, request: measure_pb2.CompareRequest) -> bytes:
        found = interleave(request, self._loader, lambda digest: b"", 1, lambda: None)
        return comparison_to_proto(found).SerializeToString()

    def _means(self, first: str, other: str) -> bytes:
        means = []
        for symbol in (first, other):
            none = measure_pb2.Workload(), measure_pb2.WorkerContext()
            subject = open_subject(
                self._subject(symbol),
                *none,
                self._loader,
                Blobs(Path("nowhere")),
                OPTIONS,
                Phases(),
            )
            subject.prepared.fill([])
            sampler = Sampler(subject.prepared, OPTIONS, Host())
            sampler.calibrate()
            sampler.warm_up()
            for _ in range(SEQUENTIAL_SAMPLES):
                sampler.sample()
            means.append(float(np.mean(sampler.samples().per_call("wall_ns"))))
        return struct.pack("=d", means[1] / means[0])

    def _subject(self, symbol: str) -> measure_pb2.Subject:
        return measure_pb2.Subject(artifact=self._artifact, symbol=symbol, name=symbol)


def count(say: Callable[[str, str], Verdict], trials: int) -> tuple[Counter[str], Counter[str]]:
    """Return how often what was said of equal code, and of a true difference, which is asked for either way round."""
    equal: Counter[str] = Counter()
    differs: Counter[str] = Counter()
    for trial in range(trials):
        equal[say("plain", "plain")] += 1
        pair = ("plain", "longer") if trial % 2 else ("longer", "plain")
        truth = Verdict.SLOWER if trial % 2 else Verdict.FASTER
        found = say(*pair)
        known = found in (truth, Verdict.INCONCLUSIVE)
        differs["right" if found is truth else found.value if known else "wrong"] += 1
    return equal, differs


def main() -> None:
    """Compare, and print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--noise", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--difference", type=float, default=DIFFERENCE)
    args = parser.parse_args()
    bench, trials = Bench(args.difference), args.trials
    bench.interleaved("plain", "longer")  # what is imported and compiled once
    with noise(args.noise):
        began = time.perf_counter()
        equal, differs = count(bench.interleaved, trials)
        took_s = time.perf_counter() - began
        peer_equal, peer_differs = count(bench.sequential, trials)

    def alarms(found: Counter[str]) -> float:
        return 100 * (found[Verdict.FASTER] + found[Verdict.SLOWER]) / trials

    figures = (
        ("compare_false_alarms", alarms(equal), "<= 1", alarms(peer_equal), True),
        *(
            (
                f"compare_{word}",
                100 * differs[word] / trials,
                goal,
                100 * peer_differs[word] / trials,
                low,
            )
            for word, goal, low in (
                ("right", "most", False),
                ("wrong", "0", True),
                ("inconclusive", "few", True),
            )
        ),
    )
    for name, value, goal, peer, lower_is_better in figures:
        emit(
            name,
            value,
            "%",
            goal=goal,
            samples=trials,
            lower_is_better=lower_is_better,
            peer=PEER,
            peer_value=peer,
        )
    emit(
        "compare_s",
        took_s / (2 * trials),
        "s",
        goal="none",
        samples=2 * trials,
        lower_is_better=True,
    )


if __name__ == "__main__":
    main()
