"""Kernels beside tuned libraries, on this CPU: matrix products, convolutions, softmax and layer norm.

Figures: ``matmul_512_f32_1t``, ``matmul_512_f32_2t``, ``matmul_1024_f32_1t`` (GFLOP/s; peer: numpy's OpenBLAS),
``matmul_512_i8_1t`` (GOP/s), ``conv3x3_1t`` (GFLOP/s; 64 to 64 channels, 56 x 56), ``depthwise_1t``, ``softmax_1t``,
``layer_norm_1t`` (GB/s read and written; peer: onnxruntime), and beside the last three ``copy_1t``, what numpy copies
of as many bytes (a goal is at least 0.8 of it), and ``copy_past_1t``, what a copy of ours does that stores past the
caches, as softmax and layer norm do and numpy does not. Ours are the operators of `farm.ops` with their default
schedules, as `farm.ops.schedules.scheduled` gives them to everybody; nothing is tuned.

Ours and the peer's calls take turns. On one thread, time is the calling thread's CPU time, which other programs on the
machine disturb least; on two it is wall time. Values are medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import threadpoolctl
from support import ort_peer, plain_blas
from support.figures import emit

import farm
import farm.ops as ops
import farm.te as te
from farm.ir import Function
from farm.ops.schedules import scheduled
from farm.runtime.interface import Array
from farm.runtime.local import local_capabilities
from farm.runtime.native import NativeLoader

SPIN_S = 0.25
"""OpenBLAS's threads look for work for 2**26 ticks (its THREAD_TIMEOUT) before they sleep: 67 ms or less, but one
was still seen at it after 60 ms, on a core that ours should have had."""
SAMPLES = 60
ROWS, COLUMNS = 4096, 2048
"""Of softmax and layer norm: larger than the caches."""


@dataclass(frozen=True)
class Case:
    """One figure.

    Attributes
    ----------
    work
        Operations or bytes of one call.
    peer
        The same computation by the peer, in this thread; None if it is not installed.
    tolerance
        Largest difference from the peer's result; 0 for integers.
    """

    figure: str
    function: Function
    inputs: list[Array]
    work: float
    unit: str
    goal: str
    name: str
    peer: Callable[[], Array] | None
    tolerance: float
    threads: int = 1


def settle(call: Callable[[], object]) -> None:
    """Wait until the other side's idle threads no longer look for work on a core, then call once."""
    time.sleep(SPIN_S)
    call()


def measure(case: Case) -> None:
    """Check the result, then call both in turn and print the figure."""
    here = local_capabilities(accelerators=False)
    clock = time.thread_time_ns if case.threads == 1 else time.perf_counter_ns
    loader = NativeLoader(here.targets, here.provides, clock, threads=case.threads)
    artifact = farm.build({"llvm": [case.function]})
    name = case.function.name
    ours: list[int] = []
    theirs: list[int] = []
    with loader.load(artifact) as module, threadpoolctl.threadpool_limits(case.threads):
        result = module.call(name, case.inputs, repeat=2).outputs[0]
        if case.peer is not None:
            difference = np.abs(case.peer() - result).max()
            if not difference <= case.tolerance:
                sys.exit(f"{case.figure}: differs by {difference} from {case.name}")
        for _ in range(SAMPLES):
            if case.threads > 1:
                settle(lambda: module.call(name, case.inputs, repeat=1))
            ours += module.call(name, case.inputs, repeat=1).samples_ns
            if case.peer is not None:
                if case.threads > 1:
                    settle(case.peer)
                began = clock()
                case.peer()
                theirs.append(clock() - began)
    emit(
        case.figure,
        case.work / statistics.median(ours),
        case.unit,
        goal=case.goal,
        samples=SAMPLES,
        lower_is_better=False,
        peer=case.name if theirs else None,
        peer_value=case.work / statistics.median(theirs) if theirs else None,
        spread=[case.work / sample for sample in ours],
    )


def operator(
    name: str, shapes: list[tuple[int, ...]], make: Callable[..., te.Tensor], threads: int = 1
) -> Function:
    """Return an operator on float32 operands of some shapes, with its default schedule for this CPU."""
    return _default(
        name, [te.placeholder(s, name=f"x{n}") for n, s in enumerate(shapes)], make, threads
    )


def _default(
    name: str, operands: list[te.Tensor], make: Callable[..., te.Tensor], threads: int = 1
) -> Function:
    function = te.function(name, [*operands, make(*operands)])
    return scheduled(function, "llvm", threads=threads)


def matmul(n: int, threads: int) -> Case:
    """Return a product of float32 squares."""
    a, b = (_floats(n, n) for _ in "ab")
    function = operator(f"matmul_{n}", [(n, n)] * 2, ops.matmul, threads)
    name = plain_blas.name()
    figure, goal = f"matmul_{n}_f32_{threads}t", "ratio >= 0.95"
    peer = lambda: a @ b  # noqa: E731
    return Case(figure, function, [a, b], 2 * n**3, "GFLOP/s", goal, name, peer, 1e-5 * n, threads)


def others() -> list[Case]:
    """Return the cases whose peer is onnxruntime."""
    rng, n = np.random.default_rng(1), 512
    bytes_ab = [rng.integers(-128, 128, (n, n)).astype(np.int8) for _ in "ab"]
    narrow = [te.placeholder((n, n), "int8", name=name) for name in "ab"]
    x, w, depth = _floats(1, 64, 56, 56), _floats(64, 64, 3, 3), _floats(64, 1, 3, 3)
    rows, gamma, beta = _floats(ROWS, COLUMNS), _floats(COLUMNS), _floats(COLUMNS)
    name, moved = ort_peer.NAME, 8.0 * ROWS * COLUMNS
    copied = "ratio >= 1; >= 0.8 of copy_1t"
    peers = ort_peer.Peers()
    conv = operator("conv", [x.shape, w.shape], lambda x, w: ops.conv2d(x, w, padding=1))
    depthwise = operator(
        "depthwise", [x.shape, depth.shape], lambda x, w: ops.conv2d(x, w, padding=1, groups=64)
    )
    softmax = operator("softmax", [rows.shape], ops.softmax)
    norm = operator("norm", [rows.shape, gamma.shape, beta.shape], ops.layer_norm)
    copy = operator(
        "copy", [rows.shape], lambda x: te.compute(x.shape, lambda *at: x[at], name="y")
    )
    target = np.empty_like(rows)

    def numpy_copy() -> Array:
        np.copyto(target, rows)
        return target

    return [
        Case(
            *("copy_past_1t", copy, [rows], moved, "GB/s", "none: the machine's own"),
            *("numpy.copyto", numpy_copy, 0),
        ),
        Case(
            *("matmul_512_i8_1t", _default("matmul_i8", narrow, ops.matmul), bytes_ab, 2 * n**3),
            *("GOP/s", "ratio >= 1", name, peers.matmul_i8(*bytes_ab), 0),
        ),
        Case(
            *("conv3x3_1t", conv, [x, w], 2 * 9 * 64 * 64 * 56 * 56, "GFLOP/s", "ratio >= 1"),
            *(name, peers.conv(x, w, groups=1), 1e-2),
        ),
        Case(
            *("depthwise_1t", depthwise, [x, depth], 8 * x.size, "GB/s", copied),
            *(name, peers.conv(x, depth, groups=64), 1e-4),
        ),
        Case(
            *("softmax_1t", softmax, [rows], moved, "GB/s", copied),
            *(name, peers.softmax(rows), 1e-5),
        ),
        Case(
            *("layer_norm_1t", norm, [rows, gamma, beta], moved, "GB/s", copied),
            *(name, peers.layer_norm(rows, gamma, beta), 1e-3),
        ),
    ]


def copy() -> None:
    """Print what numpy copies, with as many bytes as the memory-bound cases move."""
    source = _floats(ROWS, COLUMNS)
    target = np.empty_like(source)
    times = []
    for _ in range(SAMPLES):
        began = time.thread_time_ns()
        np.copyto(target, source)
        times.append(time.thread_time_ns() - began)
    moved = 8.0 * source.size
    emit(
        "copy_1t",
        moved / statistics.median(times),
        "GB/s",
        goal="none: the machine's own",
        samples=SAMPLES,
        lower_is_better=False,
        spread=[moved / sample for sample in times],
    )


def _floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def main() -> None:
    """Measure all in one run; names as arguments choose some."""
    plain_blas.ensure()
    cases = [matmul(512, 1), matmul(512, 2), matmul(1024, 1), *others()]
    wanted = sys.argv[1:] or [case.figure for case in cases]
    copy()
    for case in cases:
        if case.figure in wanted:
            measure(case)


if __name__ == "__main__":
    main()
