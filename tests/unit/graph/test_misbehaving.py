"""Backends that raise, never return or return nonsense: reported by name, and the rest goes on."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_examples import Takes

from farm import te
from farm.errors import UnsupportedFunction
from farm.graph import (
    FunctionCode,
    Graph,
    GraphBuilder,
    JsonCode,
    Partition,
    Pattern,
    any_op,
    op,
    partition,
    wildcard,
)
from farm.graph.guard import BackendMisbehavedError, Guard
from farm.graph.lower import lower
from farm.graph.pattern import Either, Op
from farm.ir import Function, Role

SHORT_S = 0.05  # of calls that never return; all others end at once


def graph() -> Graph:
    b = GraphBuilder("g")
    x = b.input("x", (4,), "int32")
    one = b.constant(np.int32([1]), "one")
    return b.finish(b.op("add", b.op("relu", x, name="r"), one, name="s"))


def loop(*_: Any) -> Any:
    while True:
        pass


def stubborn_loop(*_: Any) -> Any:
    end = threading.Event()
    for _turn in range(3):
        try:
            while not end.wait(0.001):
                pass
        except BaseException:  # noqa: BLE001 - what the test is about
            time.sleep(0.001)


def fail(*_: Any) -> Any:
    raise RuntimeError("boom")


def leave(*_: Any) -> Any:
    raise SystemExit(3)


class Unspeakable(Exception):
    """An error whose text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


def unspeakable(*_: Any) -> Any:
    raise Unspeakable


def all_on_cpu(parts: Partition) -> bool:
    return {p.region.backend for p in parts.regions} == {"cpu"}


def broken(where: str, how: Callable[..., Any]) -> Any:
    """Return a backend that does `how` in one of its hooks, and is good otherwise."""

    class Broken(Takes):
        pass

    backend = Broken("bad", frozenset({"r", "s"}))
    if where in ("patterns", "joins", "knobs", "name"):
        setattr(Broken, where, property(how))
    elif where == "check":
        Broken.patterns = property(lambda self: [Pattern("p", any_op("relu|add"), 0, how)])  # type: ignore[assignment]
    elif where == "attribute":
        pattern = Pattern("p", op("clip", wildcard(), low=how))
        Broken.patterns = property(lambda self: [pattern])  # type: ignore[assignment]
    else:
        setattr(backend, where, how)
    return backend


def deep(*_: Any) -> Any:
    inner = any_op("relu")
    for _level in range(2000):
        inner = op("relu", inner)
    return [Pattern("deep", inner)]


class Number(float):
    """A number whose comparisons raise."""

    def __le__(self, other: object) -> bool:
        raise RuntimeError("boom")

    __ge__ = __le__


@pytest.mark.parametrize("name", ["é", "a b", "", "cpu", "1", "a" * 41, "a-b"])
def test_name_that_no_function_could_have_costs_only_its_own_regions(name: str) -> None:
    bad = Takes(name, frozenset({"r"}))
    parts = partition(graph(), [bad, Takes("good", frozenset({"s"}))])
    (problem,) = parts.problems
    assert "its name gave nonsense" in problem
    assert parts.region_of("r").region.backend == "cpu"
    assert parts.region_of("s").region.backend == "good"


@pytest.mark.parametrize(
    "number",
    [10**5000, -(10**5000), Number(1), float("nan"), "1", True],
    ids=lambda it: type(it).__name__,
)
def test_prediction_that_is_no_number_is_a_problem(number: Any) -> None:
    bad = broken("predict", lambda *_: number)
    parts = partition(graph(), [bad])
    assert [p for p in parts.problems if "its predict gave nonsense" in p]
    assert {p.predicted_s for p in parts.regions if p.code is not None} == {None}


def test_pattern_that_is_too_deep_is_a_problem() -> None:
    parts = partition(graph(), [broken("patterns", deep), Takes("good", frozenset({"s"}))])
    assert any("raised RecursionError" in problem for problem in parts.problems)
    assert parts.region_of("s").region.backend == "good"


@pytest.mark.parametrize(
    "root", [None, 7, Op(7, None), Op(("relu",), 7), Op(("relu",), None, 7), Either(7)]
)
def test_pattern_made_of_anything_is_a_problem_or_matches_nothing(root: Any) -> None:
    bad = broken("patterns", lambda *_: [Pattern("p", root)])
    assert all_on_cpu(partition(graph(), [bad]))


def test_what_backends_say_is_one_line() -> None:
    def check(_: Any) -> str:
        return "too\n  large\x1b[2J\0 by\tfar"

    parts = partition(graph(), [broken("check", check)])
    assert parts.reasons["r"] == "bad: p: too large?[2J? by far"


HOOKS = ["patterns", "joins", "knobs", "name", "check", "compile"]


@pytest.mark.parametrize("where", HOOKS)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (fail, "raised RuntimeError: boom"),
        (leave, "raised SystemExit: 3"),
        (unspeakable, r"raised Unspeakable: \(its text raises\)"),
    ],
)
def test_hook_that_raises_is_reported_and_costs_only_its_own_regions(
    where: str, how: Callable[..., Any], said: str
) -> None:
    good = Takes("good", frozenset({"s"}))
    parts = partition(graph(), [broken(where, how), good])
    (problem,) = {p.replace("#1 (Broken)", "bad") for p in parts.problems}
    named = f"check of pattern p {said}" if where == "check" else f"{where} {said}"
    assert problem.startswith("backend bad: its ")
    assert re.search(named, problem)
    assert parts.region_of("r").region.backend == "cpu"
    if where != "compile":  # there the bad one had claimed both
        assert parts.region_of("s").region.backend == "good"


@pytest.mark.parametrize("where", HOOKS)
def test_hook_that_never_returns_is_stopped_and_not_called_again(where: str) -> None:
    parts = partition(graph(), [broken(where, loop)], limit_s=SHORT_S)
    assert all_on_cpu(parts)
    assert any("took longer than 0.05 s" in problem for problem in parts.problems)
    deadline = time.monotonic() + 60
    while any(thread.name == "backend" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the loop goes on"
        time.sleep(0.01)


def test_predicate_of_an_attribute_is_guarded() -> None:
    b = GraphBuilder("g")
    graph = b.finish(b.op("clip", b.input("x", (4,)), low=0, high=6, name="c"))
    parts = partition(graph, [broken("attribute", fail)])
    assert parts.reasons["c"] == "backend bad: its pattern p raised RuntimeError: boom"
    assert partition(graph, [broken("attribute", loop)], limit_s=SHORT_S).problems


def test_thread_that_ignores_being_stopped_is_left_behind() -> None:
    guard = Guard("bad", SHORT_S)
    with pytest.raises(BackendMisbehavedError, match="its check took longer than"):
        guard.call("check", stubborn_loop)
    with pytest.raises(BackendMisbehavedError, match="backend bad is not asked again: its check"):
        guard.call("check", lambda: 1)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("name", 3, "name gave nonsense"),
        ("name", "a b", "name gave nonsense"),
        ("patterns", 3, "patterns raised TypeError"),
        ("patterns", ["p"], "patterns gave nonsense"),
        ("patterns", [Pattern("p", any_op("relu"), "high")], "patterns gave nonsense"),
        ("joins", "yes", "joins gave nonsense"),
        ("knobs", {"tile": ()}, "knobs gave nonsense"),
        ("knobs", {"tile": (object(),)}, "knobs gave nonsense"),
        ("knobs", [4], "knobs raised AttributeError"),
        ("check", True, "check of pattern p gave nonsense"),
        ("check", 0, "check of pattern p gave nonsense"),
        ("compile", None, "compile raised InvalidGraph: it returned NoneType"),
    ],
)
def test_nonsense_is_reported(where: str, value: Any, said: str) -> None:
    parts = partition(graph(), [broken(where, lambda *_: value)])
    assert all_on_cpu(parts)
    told = " ".join((*parts.problems, *parts.reasons.values()))
    assert said.replace("compile raised InvalidGraph:", "does not compile:") in told


def other(name: str, dtype: str = "int32", size: int = 4) -> Function:
    x, y = (te.placeholder((size,), dtype, n) for n in "xy")
    return te.function(name, [x, y, te.compute((size,), lambda i: x[i] + y[i], name="z")])


def calling(name: str) -> Function:
    x, y = (te.placeholder((4,), "int32", n) for n in "xy")
    return te.sequence(name, inputs=[x], outputs=[y], calls=[te.call("else", x, y)])


def unwritten(region: Any) -> Function:
    function = lower(region.graph)
    (output,) = [p for p in function.params if p.role is Role.OUTPUT]
    return replace(
        function,
        params=(*function.params, replace(output, buffer=replace(output.buffer, name="more"))),
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (lambda r: FunctionCode(3, "llvm"), "its function is none (int)"),
        (lambda r: FunctionCode(lower(r.graph), "npu9000"), "its target is unknown"),
        (lambda r: FunctionCode(lower(r.graph), None), "its target is no text"),
        (lambda r: FunctionCode(other("else"), "llvm"), "its function is else; it has to be"),
        (
            lambda r: FunctionCode(other(r.name, "int8"), "llvm"),
            "its function takes (input int8[4]",
        ),
        (lambda r: FunctionCode(lower(r.graph), "llvm", ("a",)), "constant: str is no array"),
        (lambda r: FunctionCode(lower(r.graph), "llvm", 3), "its constants are no tuple"),
        (
            lambda r: FunctionCode(lower(r.graph), "llvm", ()),
            "the region needs (input int32[4], output",
        ),
        (
            lambda r: FunctionCode(lower(r.graph), "ea", None, other(r.name, size=5)),
            "its function takes",
        ),
        (lambda r: FunctionCode(calling(r.name), "llvm"), "its function calls others"),
        (lambda r: FunctionCode(unwritten(r), "llvm"), "its function breaks a rule"),
        (lambda r: JsonCode({"a": object()}, "void run();"), "its document is no plain JSON"),
        (lambda r: JsonCode({"a": float("nan")}, ""), "its document is no plain JSON"),
        (lambda r: JsonCode({"a": "b" * (1 << 20)}, ""), "its document has 1048584 bytes"),
        (lambda r: JsonCode({}, 3), "its runtime or options are no text"),
        (lambda r: JsonCode({}, "", None, ("-include/etc/passwd",)), "its runtime cannot be used"),
    ],
)
def test_code_that_does_not_fit_its_region_is_refused(
    code: Callable[[Any], Any], said: str
) -> None:
    parts = partition(graph(), [broken("compile", lambda region, _: code(region))])
    assert all_on_cpu(parts)
    assert said in parts.reasons["r"]


@pytest.mark.parametrize("value", ["soon", -1.0, float("nan"), 10**400, True, None])
def test_prediction_that_is_nonsense_counts_as_none(value: Any) -> None:
    class Predicting(Takes):
        def predict(self, region: Any, options: Any) -> Any:
            return value

    parts = partition(graph(), [Predicting("acc", frozenset("rs"))], only_faster=True)
    (placed,) = parts.regions
    assert (placed.region.backend, placed.predicted_s) == ("acc", None)
    assert "its predict gave nonsense" in parts.problems[0]


def test_prediction_that_is_refused_is_none_and_no_problem() -> None:
    class Unknown(Takes):
        def predict(self, region: Any, options: Any) -> Any:
            raise UnsupportedFunction("no model")

    parts = partition(graph(), [Unknown("acc", frozenset("rs"))])
    assert [p.predicted_s for p in parts.regions] == [None]
    assert parts.problems == ()


def test_prediction_that_raises_is_a_problem() -> None:
    backend = Takes("acc", frozenset("rs"))
    backend.predict = fail  # type: ignore[attr-defined]
    said = ("backend acc: its predict raised RuntimeError: boom",)
    assert partition(graph(), [backend]).problems == said

    class Hidden(Takes):
        predict = property(fail)

    assert partition(graph(), [Hidden("acc", frozenset("rs"))]).problems == said


def test_two_backends_of_one_name_are_told_apart() -> None:
    twice = [Takes("acc", frozenset("r")), Takes("acc", frozenset("s"))]
    parts = partition(graph(), twice)
    assert parts.region_of("r").region.backend == "acc"
    assert parts.region_of("s").region.backend == "cpu"
    assert "its name gave nonsense (str 'acc')" in parts.problems[0]


def test_refusal_that_is_raised_is_a_reason_and_no_problem() -> None:
    def refuse(_: Any) -> None:
        raise UnsupportedFunction("too deep; make it flat")

    parts = partition(graph(), [broken("check", refuse)])
    assert parts.problems == ()
    assert parts.reasons["r"] == "bad: p: too deep; make it flat"
