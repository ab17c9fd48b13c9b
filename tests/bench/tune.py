"""Tuning through a farm: a product of 512 x 512 float32 matrices in 64 trials on one CPU device, and many devices.

Figures: ``tune_matmul_512`` (candidates a second of the search, wall time, all included; peer: TVM's MetaSchedule
through its RPC runner, the same trials), ``tune_matmul_512_best`` (GFLOP/s of the best kernel on one thread; peer:
numpy's OpenBLAS), ``tune_matmul_512_best_tvm`` (the same beside TVM's best), ``tune_idle_gap`` (part of the search in
which the device had no candidate), ``tune_phase_NAME`` (seconds of a candidate), ``tune_cpu_PART`` (CPU time of a
candidate by process: what says the same on a busy machine), ``tune_scaling_2``, ``_4``, ``_8`` (candidates a second on
so many emulated accelerators, over one).

Best kernels are timed in turns in one process, by the calling thread's CPU time. ``--trials`` changes how many,
``--no-peer`` leaves TVM out, ``--no-scaling`` the emulated devices.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from support import cpu, plain_blas, tvm_peer
from support.best import interleaved
from support.figures import emit

import farm
import farm.ops as ops
import farm.te as te
from farm.ir import Function
from farm.target import Target
from farm.testing import AgentPlan, EmbeddedFarm
from farm.tune import Records
from farm.tune.tuner import Progress
from farm.tune.tuning import tune

N = 512
OPERATIONS = 2 * N**3
PEER_LIMIT_S = 900


class Searched:
    """Notes where the search stood at its end, before the decision."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.measured = 0
        self.busy_s = 0.0
        self.cpu_s: dict[str, float] = {}
        self._before: Mapping[str, float] | None = None

    def __call__(self, progress: Progress) -> None:
        """Take note."""
        if self._before is None:
            self._before = cpu.cpu_s()
        if progress.phase == "decide" and not self.cpu_s:
            self.cpu_s = cpu.since(self._before)
        if progress.phase == "search":
            self.seconds, self.measured = progress.elapsed_s, progress.measured
            self.busy_s = sum(use.busy_s for use in progress.devices.values())

    @property
    def rate(self) -> float:
        """Candidates a second."""
        return self.measured / self.seconds


def matmul() -> Function:
    """Return the product."""
    a, b = (te.placeholder((N, N), name=name) for name in "ab")
    return te.function("matmul", [a, b, ops.matmul(a, b)])


def layer() -> Function:
    """Return an integer layer for the accelerator."""
    x, w = te.placeholder((64, 128), "int8", name="x"), te.placeholder((128, 64), "int8", name="w")
    return te.function("layer", [x, w, ops.matmul(x, w)])


def ours(trials: int, folder: Path) -> None:
    """Tune, and print what there is to say of the search and of the best kernel."""
    own = Target.parse("llvm").family
    plans = [AgentPlan("cpu-1", (own,), ("cpu",), slots=2)]
    searched = Searched()
    path = folder / "tune.db"
    with (
        EmbeddedFarm("processes", plans=plans) as embedded,
        farm.connect(embedded.address) as client,
        Records(path) as records,
    ):
        found = tune(
            matmul(),
            client,
            selector="kind=cpu",
            trials=trials,
            records=records,
            observer=searched,
            ceilings=False,
        )
        phases: dict[str, float] = defaultdict(float)
        for record in records.find():
            for name, seconds in record.phases.items():
                phases[name] += seconds
        artifact = client.build({"llvm": [matmul()]}, tuned=records)
    artifact.save(folder / "best.farm")
    (decision,) = found.decisions
    print(
        f"tune: {dict(decision.task.outcomes)}, new winner: {decision.is_new}; "
        f"{decision.winner and decision.winner.configuration}",
        file=sys.stderr,
    )
    peer = theirs(folder / "best.farm", trials) if OPTIONS.peer else None
    emit(
        "tune_matmul_512",
        searched.rate,
        "candidates/s",
        goal=">= 15",
        samples=trials,
        lower_is_better=False,
        peer=None if peer is None else "TVM MetaSchedule, RPC runner",
        peer_value=None if peer is None else peer["measured"] / peer["seconds"],
    )
    best = best_ns(folder / "best.farm") if peer is None else peer["best_ns"]
    for figure, name, other in (
        ("tune_matmul_512_best", plain_blas.name(), "numpy"),
        ("tune_matmul_512_best_tvm", "TVM MetaSchedule", "tvm"),
    ):
        if other in best:
            emit(
                figure,
                OPERATIONS / best["ours"],
                "GFLOP/s",
                goal=">= OpenBLAS" if other == "numpy" else ">= peer",
                samples=trials,
                lower_is_better=False,
                peer=name,
                peer_value=OPERATIONS / best[other],
            )
    emit(
        "tune_idle_gap",
        max(0.0, 1 - searched.busy_s / searched.seconds),
        "of the time",
        goal="< 0.1",
        samples=trials,
        lower_is_better=True,
    )
    for name, seconds in sorted(phases.items()):
        emit(
            f"tune_phase_{name}",
            seconds / trials,
            "s a candidate",
            goal="shows where time goes",
            samples=trials,
            lower_is_better=True,
        )

    for name, seconds in sorted(searched.cpu_s.items()):
        emit(
            f"tune_cpu_{name}",
            1e3 * seconds / trials,
            "ms a candidate",
            goal="shows where time goes",
            samples=trials,
            lower_is_better=True,
        )


def best_ns(artifact: Path) -> dict[str, float]:
    """Time the best kernel beside numpy's."""
    rng = np.random.default_rng(0)
    return interleaved(artifact, [rng.standard_normal((N, N), np.float32) for _ in "ab"], {})


def theirs(artifact: Path, trials: int) -> dict[str, object] | None:
    """Return what the peer did, None without it."""
    if not tvm_peer.is_installed():
        return None
    program = Path(__file__).parent / "support" / "tvm_tune.py"
    command = [sys.executable, str(program), str(artifact), str(N), str(trials)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PEER_LIMIT_S, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        print(f"tune: the peer failed: {done.stderr[-2000:]}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def scaling(trials: int) -> None:
    """Print candidates a second on several emulated devices over one."""
    rates: dict[int, float] = {}
    for count in (1, 2, 4, 8):
        plans = [
            AgentPlan("ea-1", ("ea",), tuple(f"ea:ea16@ea-{n}" for n in range(count)), slots=2)
        ]
        plans.append(AgentPlan("cpu-1", (Target.parse("llvm").family,), (), slots=2))
        searched = Searched()
        with (
            EmbeddedFarm("processes", plans=plans) as embedded,
            farm.connect(embedded.address) as client,
        ):
            tune(
                layer(),
                client,
                selector="kind=ea",
                trials=trials,
                observer=searched,
                decide_s=0.5,
                ceilings=False,
            )
        rates[count] = searched.rate
        if count > 1:
            emit(
                f"tune_scaling_{count}",
                rates[count] / rates[1],
                f"x of one device ({rates[1]:.2f} candidates/s)",
                goal=f"{count} where there are as many cores",
                samples=trials,
                lower_is_better=False,
            )


def main() -> int:
    """Run all of it."""
    with tempfile.TemporaryDirectory() as folder:
        ours(OPTIONS.trials, Path(folder))
    if OPTIONS.scaling:
        scaling(min(40, OPTIONS.trials))
    return 0


if __name__ == "__main__":
    plain_blas.ensure()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    parser.add_argument("--no-scaling", dest="scaling", action="store_false")
    OPTIONS = parser.parse_args()
    sys.exit(main())
