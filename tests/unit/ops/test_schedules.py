"""Default schedules: they compute the same, and use vectors and registers where they should."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from fuzz.oracle import arguments

import farm.ops as ops
import farm.ops.schedules
import farm.ops.schedules.contraction
import farm.ops.schedules.knobs
import farm.ops.schedules.threads
import farm.ops.schedules.traffic
import farm.te as te
from farm.errors import ScheduleError
from farm.ir import Function, interpret
from farm.ops.schedules import default_schedule, scheduled
from farm.schedule import Trace

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"


def product(m: int, n: int, depth: int) -> Function:
    a, b = te.placeholder((m, depth), name="a"), te.placeholder((depth, n), name="b")
    return te.function("product", [a, b, ops.matmul(a, b)])


def rows(operator: Callable[..., te.Tensor], *shape: int) -> Function:
    x = te.placeholder(shape, name="x")
    more = [te.placeholder(shape[-1:], name=n) for n in "gb"] * (operator is ops.layer_norm)
    return te.function("rows", [x, *more, operator(x, *more)])


def batches(a: tuple[int, ...], b: tuple[int, ...], **how: bool) -> Function:
    x, y = te.placeholder(a, name="a"), te.placeholder(b, name="b")
    return te.function("batches", [x, y, ops.matmul(x, y, **how)])


def conv(x: tuple[int, ...], w: tuple[int, ...], dtype: str = "float32", **how: object) -> Function:
    a, b = te.placeholder(x, dtype, name="x"), te.placeholder(w, dtype, name="w")
    return te.function("conv", [a, b, ops.conv2d(a, b, **how)])  # type: ignore[arg-type]


TILE = {"register", "vectorized", "unrolled"}
WINDOW = {"register", "vectorized"}
CASES = {
    "batches": (lambda: batches((2, 12, 5), (2, 5, 16)), TILE),
    "batches that broadcast": (lambda: batches((3, 1, 4, 5), (2, 5, 8)), TILE),
    "batches with odd rows": (lambda: batches((2, 7, 5), (2, 5, 24)), TILE),
    "batches of few columns": (lambda: batches((2, 17, 5), (2, 5, 11)), WINDOW),
    "both transposed": (
        lambda: batches((2, 5, 12), (2, 16, 5), transpose_a=True, transpose_b=True),
        TILE,
    ),
    "plain, second transposed": (lambda: batches((13, 6), (16, 6), transpose_b=True), TILE),
    "plain, first transposed": (lambda: batches((6, 13), (6, 16), transpose_a=True), TILE),
    "product of a prime number of columns": (lambda: product(9, 37, 4), set()),
    "product with itself": (lambda: _itself(8), set()),
    "vector times matrix": (lambda: batches((1, 9), (9, 32)), {"vectorized"}),
    "conv": (lambda: conv((1, 3, 6, 6), (16, 3, 3, 3), padding=1), TILE),
    "conv with strides": (
        lambda: conv((2, 3, 9, 11), (8, 3, 3, 2), stride=2, dilation=(1, 2)),
        WINDOW,
    ),
    "conv to few channels": (lambda: conv((1, 4, 7, 7), (3, 4, 3, 3), padding=1), {"vectorized"}),
    "conv to a prime number of channels": (
        lambda: conv((1, 2, 5, 5), (37, 2, 3, 3), padding=1),
        {"vectorized"},
    ),
    "conv, channels last": (
        lambda: conv((1, 5, 5, 3), (3, 3, 3, 16), padding=1, layout="NHWC"),
        TILE,
    ),
    "depthwise": (
        lambda: conv((1, 4, 7, 9), (4, 1, 3, 3), padding=1, groups=4),
        WINDOW | {"stack"},
    ),
    "depthwise, not padded": (lambda: conv((1, 4, 7, 9), (4, 1, 3, 3), groups=4), WINDOW),
    "depthwise with strides": (
        lambda: conv((2, 4, 9, 9), (4, 1, 3, 3), padding=1, stride=2, groups=4),
        WINDOW,
    ),
    "depthwise, wide rows": (lambda: conv((1, 2, 3, 130), (2, 1, 3, 3), groups=2), WINDOW),
    "depthwise, rows of a large prime": (
        lambda: conv((1, 2, 3, 129), (2, 1, 3, 3), groups=2),
        set(),
    ),
    "depthwise, channels last": (
        lambda: conv((1, 5, 5, 16), (3, 3, 1, 16), padding=1, groups=16, layout="NHWC"),
        WINDOW,
    ),
    "grouped": (lambda: conv((1, 6, 5, 8), (4, 3, 3, 3), padding=1, groups=2), WINDOW),
    "int8 conv": (lambda: conv((1, 3, 5, 6), (16, 3, 3, 3), "int8", padding=1), TILE),
    "product": (lambda: product(12, 16, 5), {"register", "vectorized", "unrolled"}),
    "product with a tail": (lambda: product(15, 32, 3), {"register", "vectorized", "unrolled"}),
    "product of odd extents": (lambda: product(7, 5, 3), set()),
    "relu": (lambda: rows(ops.relu, 3, 70), {"vectorized"}),
    "sum": (lambda: rows(lambda x: ops.sum(x, -1), 3, 64), {"register", "vectorized"}),
    "softmax": (lambda: rows(ops.softmax, 2, 64), {"register", "vectorized"}),
    "layer norm": (lambda: rows(ops.layer_norm, 2, 64), {"register", "vectorized"}),
    "transpose": (lambda: rows(ops.transpose, 5, 9), set()),
}


def _itself(n: int) -> Function:
    a = te.placeholder((n, n), name="a")
    return te.function("itself", [a, ops.matmul(a, a)])


@pytest.mark.parametrize("name", CASES)
def test_default_schedule_computes_the_same(name: str) -> None:
    make, wanted = CASES[name]
    function = make()
    schedule = default_schedule(function, X86)
    inputs = arguments(function, 3)
    found = interpret(schedule.function, inputs, check_conflicts=True)
    for a, b in zip(found, interpret(function, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    words = set(str(schedule.function).replace("(", " ").split())
    assert wanted <= words
    assert Trace.from_json(schedule.trace.to_json()).apply(function).function == schedule.function


@pytest.mark.parametrize("name", CASES)
def test_default_schedule_for_threads_computes_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farm.ops.schedules.threads, "LEAST", 1)
    function = CASES[name][0]()
    schedule = default_schedule(function, X86, threads=2)
    inputs = arguments(function, 4)
    found = interpret(schedule.function, inputs, check_conflicts=True)
    for a, b in zip(found, interpret(function, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert "parallel" in str(schedule.function)


def test_softmax_keeps_its_powers_in_the_result() -> None:
    text = str(scheduled(rows(ops.softmax, 2, 64), X86))
    assert "softmax_exp[" not in text
    assert "softmax[i0_4, " in text.split("exp(")[0]


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arrays of some KiB be larger than the caches."""
    monkeypatch.setattr(farm.ops.schedules.traffic, "LARGE_BYTES", 1 << 10)
    monkeypatch.setattr(farm.ops.schedules.traffic, "FAR_BYTES", 1 << 10)


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("operator", "shape", "streams", "ahead"),
    [
        (ops.softmax, (6, 256), 1, 1),
        (ops.layer_norm, (3, 2, 256), 1, 1),
        (ops.relu, (5, 256), 1, 0),
        (ops.relu, (5, 250), 0, 0),  # rows end inside lines
        (ops.softmax, (4, 64), 1, 0),  # rows too short to be worth it
        (lambda x: ops.sum(x, -1), (8, 256), 0, 0),
    ],
)
def test_loops_over_large_arrays_get_hints_and_compute_the_same(
    operator: Callable[..., te.Tensor],
    shape: tuple[int, ...],
    streams: int,
    ahead: int,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(farm.ops.schedules.threads, "LEAST", 1)
    function = rows(operator, *shape)
    schedule = default_schedule(function, X86, threads=threads)
    text = str(schedule)
    assert text.count("llvm.stream=1") == streams
    assert text.count(f"llvm.ahead={shape[-1]}") == ahead
    inputs = arguments(function, 3)
    found = interpret(schedule.function, inputs, check_conflicts=True)
    for a, b in zip(found, interpret(function, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=3e-5)
    assert Trace.from_json(schedule.trace.to_json()).apply(function).function == schedule.function


@pytest.mark.usefixtures("small_is_large")
def test_powers_of_a_large_softmax_are_kept_in_a_row_of_their_own() -> None:
    text = str(scheduled(rows(ops.softmax, 6, 256), X86))
    assert "softmax_exp[" in text


def test_arrays_that_fit_the_caches_get_no_hints() -> None:
    assert "llvm." not in str(scheduled(rows(ops.softmax, 64, 256), X86))


def test_small_functions_get_no_threads() -> None:
    assert "parallel" not in str(scheduled(product(12, 16, 5), X86, threads=2))


def test_large_products_share_their_panels_among_threads() -> None:
    text = str(scheduled(product(192, 512, 512), X86, threads=2))
    assert "for i1_0 in 32 parallel" in text


@pytest.mark.parametrize("threads", [0, -1, True, 2.0, "2"])
def test_number_of_threads_is_checked(threads: object) -> None:
    with pytest.raises(ScheduleError, match=r"threads; use 1 or more"):
        scheduled(product(8, 8, 8), X86, threads=threads)  # type: ignore[arg-type]


def test_target_without_recipes_gets_the_function_as_it_is() -> None:
    function = product(8, 8, 8)
    assert scheduled(function, "ea -config=ea16") == function


@pytest.mark.parametrize(
    "module",
    [farm.ops.schedules, farm.ops.schedules.contraction, farm.ops.schedules.knobs],
)
def test_examples_in_the_documentation_run(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
