"""Every check of a backend of graphs finds the fault that was planted for it, and nothing where nothing is wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.accel import Accelerator
from farm.errors import UnsupportedFunction
from farm.graph import FunctionCode, GraphBuilder, Pattern, any_op
from farm.graph.lower import lower
from farm.porting import check_accelerator
from farm.porting.graphs import check_backend, probe_graphs


class Good:
    """Takes sums of int32, and says why it takes no others."""

    name = "good"
    joins = True
    knobs = {"tile": (1, 2)}  # noqa: RUF012

    @property
    def patterns(self) -> list[Pattern]:
        return [Pattern("sum", any_op("add"), 0, self.check)]

    def check(self, match: Any) -> str | None:
        kind = match.graph.types[match.outputs[0]].dtype
        return None if str(kind) == "int32" else f"it adds int32, not {kind}"

    def compile(self, region: Any, options: Any) -> FunctionCode:
        return FunctionCode(lower(region.graph), "llvm")


def graphs() -> list[tuple[str, Any]]:
    b = GraphBuilder("sums")
    x, y = b.input("x", (4,), "int32"), b.input("y", (4,))
    total = b.op("add", x, b.constant(np.int32([1, 2, 3, 4])), name="total")
    return [("sums", b.finish(b.op("relu", total), b.op("add", y, y)))]


def changed(region: Any) -> FunctionCode:
    """Return code that computes something else."""
    nodes = tuple(replace(node, operator="subtract") for node in region.graph.nodes)
    return FunctionCode(lower(replace(region.graph, nodes=nodes)), "llvm")


def broken(**parts: Any) -> Any:
    return type("Broken", (Good,), parts)()


def refuse(*_: Any) -> Any:
    raise UnsupportedFunction("after all it cannot do that")


def fail(*_: Any) -> Any:
    raise ValueError("boom")


COUNT = itertools.count()


def test_good_backend_keeps_its_contract() -> None:
    report = check_accelerator(
        Accelerator(name="good", backend=Good()), graphs=graphs(), own_only=True
    )
    assert report.passed, "\n".join(map(str, report.failed))
    made = {check for check, passed, _, _ in report.counts() if passed}
    assert made == {"object", "graphs", "refusal", "same code", "graph results", "graph knobs"}


def wrong_with_tile_2(_: Any, region: Any, options: Any) -> FunctionCode:
    return changed(region) if options["tile"] == 2 else FunctionCode(lower(region.graph), "llvm")


def numbered(_: Any, region: Any, options: Any) -> FunctionCode:
    (array,) = region.graph.constants.values()
    return FunctionCode(lower(region.graph), "llvm", (array + np.int32(next(COUNT)),))


@pytest.mark.parametrize(
    ("parts", "check", "said"),
    [
        ({"compile": refuse}, "refusal", "its check said yes, but it does not compile: after all"),
        ({"compile": fail}, "graphs", "its compile raised ValueError: boom"),
        ({"check": fail}, "graphs", "its check of pattern sum raised ValueError: boom"),
        ({"patterns": property(fail)}, "graphs", "its patterns raised ValueError: boom"),
        ({"name": property(fail)}, "graphs", "its name raised ValueError: boom"),
        ({"check": lambda *_: ""}, "refusal", "refused without a reason"),
        ({"check": lambda *_: "no"}, "refusal", "refused without a reason ('no')"),
        ({"check": lambda *_: "it never takes any"}, "graphs", "it takes no node of any graph"),
        (
            {"compile": lambda self, region, options: changed(region)},
            "graph results",
            "the reference",
        ),
        ({"compile": wrong_with_tile_2}, "graph knobs", "relu_1[0] is 700, the reference 702"),
        ({"compile": numbered}, "same code", "compiled twice, it differs"),
    ],
)
def test_planted_fault_is_found(parts: dict[str, Any], check: str, said: str) -> None:
    found = list(check_backend(broken(**parts), graphs(), own_only=True))
    problems = [(it.check, it.problem) for it in found if it.problem]
    assert any(name == check and said in problem for name, problem in problems), problems


def test_graphs_of_the_farm_are_the_same_for_a_seed_and_have_names_of_their_own() -> None:
    first, second = (dict(probe_graphs(3)) for _ in range(2))
    assert list(first) == list(second)
    assert len(first) == 11
    for label, graph in first.items():
        assert str(graph) == str(second[label])
