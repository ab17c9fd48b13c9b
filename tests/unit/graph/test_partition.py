"""Partitions: complete, without circles, the same values; who gets what, and why."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_examples import Takes, backends, graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import InvalidInput, UnsupportedFunction
from farm.graph import (
    FunctionCode,
    Graph,
    GraphBuilder,
    Partition,
    Pattern,
    Plan,
    Region,
    any_op,
    execute,
    make_plan,
    op,
    partition,
    placement,
    wildcard,
)
from farm.graph.claims import CPU
from farm.graph.graph import extract
from farm.graph.lower import lower
from farm.graph.plan import MAX_PARAMS
from farm.graph.waves import connected, in_order, waves

RNG = np.random.default_rng(5)


def inputs_of(graph: Graph) -> dict[str, Any]:
    kinds = graph.types
    return {
        n: RNG.integers(-9, 9, kinds[n].shape).astype(str(kinds[n].dtype)) for n in graph.inputs
    }


def run_regions(parts: Partition, values: dict[str, Any]) -> dict[str, Any]:
    """Run regions one after the other through the reference; each finds what it reads."""
    values = dict(values)
    for placed in parts.regions:
        region = placed.region.graph
        missing = set(region.inputs) - set(values)
        assert not missing, f"{region.name} reads {missing}, which comes later"
        results = execute(region, {name: values[name] for name in region.inputs})
        values |= dict(zip(region.outputs, results, strict=True))
    return values


def run_plan(parts: Partition, values: dict[str, Any]) -> dict[str, Any]:
    """Run a plan as compiled code does: inside a segment, values are only in their buffers."""
    outside = dict(values)
    plan = make_plan(parts)
    for segment in plan.segments:
        taken = len(segment.inputs) + len(segment.constants) + len(segment.outputs)
        assert taken <= MAX_PARAMS or len(segment.steps) == 1
        place = {v: b for b, buffer in enumerate(segment.buffers) for v in buffer.values}
        memory: dict[int, Any] = {}
        outputs: dict[str, Any] = {}
        for step in segment.steps:
            graph = step.placed.region.graph
            arrays = [
                memory[place[v]] if v in place else outputs[v] if v in outputs else outside[v]
                for v in step.inputs
            ]
            for value, array in zip(step.outputs, execute(graph, arrays), strict=True):
                if value in place:
                    memory[place[value]] = array
                else:
                    outputs[value] = array
        assert set(outputs) == set(segment.outputs)
        outside |= outputs
    return outside


@settings(max_examples=40)
@given(st.data())
def test_random_partition_is_complete_acyclic_and_computes_the_same(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    chosen = data.draw(backends(graph))
    parts = partition(graph, chosen)
    covered = [node.name for placed in parts.regions for node in placed.region.nodes]
    assert sorted(covered) == sorted(node.name for node in graph.nodes)
    assert set(parts.reasons) == set(covered)
    assert all(parts.reasons.values())
    values = inputs_of(graph)
    wanted = dict(zip(graph.outputs, execute(graph, values), strict=True))
    for found in (run_regions(parts, values), run_plan(parts, values)):
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)
    for placed in parts.regions:
        backend = next((b for b in chosen if b.name == placed.region.backend), None)
        if backend is None:
            assert placed.region.backend == CPU
        else:
            names = {node.name for node in placed.region.nodes}
            assert names <= backend.wanted
            assert not names & backend.fails
            assert backend.joins or len(placed.region.matches) == 1


@given(st.data())
def test_waves_of_random_dags_leave_no_circle_and_cannot_be_joined_in_place(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(1, 30))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = {(a, b) for a, b in data.draw(st.sets(pairs, max_size=60)) if a < b}
    followers = [[b for a, b in sorted(edges) if a == unit] for unit in range(count)]
    chosen = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    groups = waves(followers, chosen)
    assert sorted(itertools.chain(*groups)) == [u for u in range(count) if chosen[u]]
    parts = [part for group in groups for part in connected(group, followers)]
    for cut in (groups, parts):
        home = {unit: number for number, group in enumerate(cut) for unit in group}
        home |= {u: len(cut) + u for u in range(count) if u not in home}
        merged = [set() for _ in range(len(cut) + count)]
        for a, b in edges:
            if home[a] != home[b]:
                merged[home[a]].add(home[b])
        assert len(in_order([sorted(each) for each in merged])) == len(merged)
    for part in parts:  # what shares nothing is apart
        inside = set(part)
        reached, pending = {part[0]}, [part[0]]
        while pending:
            unit = pending.pop()
            near = {b for a, b in edges if a == unit} | {a for a, b in edges if b == unit}
            new = (near & inside) - reached
            reached |= new
            pending += new
        assert reached == inside


def diamond() -> Graph:
    """Return ``a -> (b, c) -> d``, where b and c are apart."""
    b = GraphBuilder("d")
    x = b.input("x", (3,), "int32")
    a = b.op("relu", x, name="a")
    left = b.op("clip", a, low=0, high=5, name="b")
    right = b.op("multiply", a, a, name="c")
    return b.finish(b.op("add", left, right, name="d"))


def test_unsupported_node_between_supported_ones_splits_them() -> None:
    parts = partition(diamond(), [Takes("acc", frozenset("acd"))])
    assert [(p.region.backend, [n.name for n in p.region.nodes]) for p in parts.regions] == [
        ("acc", ["a", "c"]),
        ("cpu", ["b"]),
        ("acc", ["d"]),
    ]
    assert parts.reasons["b"] == "acc: one: not wanted"
    assert parts.region_of("c").region.name == "d_acc_0"


def test_groups_that_share_nothing_are_apart() -> None:
    b = GraphBuilder("g")
    x = b.input("x", (3,), "int32")
    graph = b.finish(*(b.op("relu", x, name=f"n{n}") for n in range(3)))
    parts = partition(graph, [Takes("acc", frozenset({"n0", "n1", "n2"}))])
    assert [len(p.region.nodes) for p in parts.regions] == [1, 1, 1]


def test_higher_priority_takes_a_node_first_whatever_the_order_of_backends() -> None:
    graph = diamond()

    class Likes(Takes):
        priority = 0

        @property
        def patterns(self) -> list[Pattern]:  # type: ignore[override]
            return [Pattern("mine", any_op("add"), self.priority)]

    low, high = Likes("low", frozenset()), Likes("high", frozenset())
    high.priority = 3
    assert partition(graph, [low, high]).region_of("d").region.backend == "high"
    high.priority = 0
    assert partition(graph, [low, high]).region_of("d").region.backend == "low"


def test_region_that_does_not_compile_goes_to_the_cpu_and_is_refused_when_strict() -> None:
    graph = diamond()
    backend = Takes("acc", frozenset("abcd"), joins=False, fails=frozenset("c"))
    parts = partition(graph, [backend])
    assert parts.region_of("c").region.backend == CPU
    assert parts.reasons["c"] == "backend acc: its compile raised ValueError: no"
    assert parts.problems == ("backend acc: its compile raised ValueError: no",)
    assert parts.region_of("a").region.backend == "acc"
    with pytest.raises(UnsupportedFunction, match=r"region d_acc_2 of c \(multiply\): backend acc"):
        partition(graph, [backend], strict=True)


def test_region_that_is_predicted_slower_is_dropped_only_if_asked() -> None:
    graph = diamond()

    class Slow(Takes):
        def predict(self, region: Any, options: Any) -> float:
            return 1.0

    backend = Slow("acc", frozenset("abcd"))
    (only,) = partition(graph, [backend]).regions
    assert (only.region.backend, only.predicted_s) == ("acc", 1.0)
    dropped = partition(graph, [backend], only_faster=True)
    assert {p.region.backend for p in dropped.regions} == {CPU}
    assert "acc: no faster (predicted 1e+06 us, the CPU about" in dropped.reasons["a"]


def test_options_reach_the_code_generator_and_unknown_ones_are_refused() -> None:
    class Tuned(Takes):
        def compile(self, region: Any, options: Any) -> FunctionCode:
            self.compiled.append(options)
            return super().compile(region, options)

    backend = Tuned("acc", frozenset("a"), knobs={"tile": (4, 8)})
    partition(diamond(), [backend])
    parts = partition(diamond(), [backend], options={"acc": {"tile": 8}})
    assert [o for o in backend.compiled if isinstance(o, dict)] == [{"tile": 4}, {"tile": 8}]
    assert placement(parts).regions[0].options == {"tile": 8}
    for options, message in (
        ({"acc": {"tile": 5}}, "option tile is 5; use one of 4, 8"),
        ({"acc": {"size": 4}}, "no option 'size'; it has tile"),
        ({"abc": {}}, "no such backend; there is acc"),
    ):
        with pytest.raises(InvalidInput, match=message):
            partition(diamond(), [backend], options=options)


def test_match_whose_inner_value_is_used_elsewhere_says_who_reads_it() -> None:
    class Pair(Takes):
        @property
        def patterns(self) -> list[Pattern]:  # type: ignore[override]
            return [Pattern("pair", op("clip", op("relu", wildcard())))]

    parts = partition(diamond(), [Pair("acc", frozenset())])
    assert "acc: pair: a is also read by c (multiply)" in parts.reasons["b"]


def test_region_of_too_many_values_stays_on_the_cpu() -> None:
    b = GraphBuilder("wide")
    value = b.input("x", (1,), "int32")
    for number in range(60):
        value = b.op("add", value, b.constant(np.int32([number])))
    graph = b.finish(value)
    every = Takes("acc", frozenset(node.name for node in graph.nodes))
    parts = partition(graph, [every])
    assert {p.region.backend for p in parts.regions} == {CPU}
    assert parts.reasons[value] == "acc: the region takes 62 values, more than 56"


def test_match_that_overlaps_one_taken_before_says_so() -> None:
    class Pair(Takes):
        @property
        def patterns(self) -> list[Pattern]:  # type: ignore[override]
            return [Pattern("pair", op("add", any_op("clip"), wildcard()), -1)]

    parts = partition(diamond(), [Takes("one", frozenset("b")), Pair("two", frozenset())])
    assert parts.reasons["d"] == "one: one: not wanted; two: pair: b (clip) was taken before"


def test_report_shows_problems_of_backends() -> None:
    parts = partition(diamond(), [Takes("acc", frozenset("a"), fails=frozenset("a"))])
    said = placement(parts).to_text()
    assert said.endswith("problems of backends\n  backend acc: its compile raised ValueError: no")


def test_report_has_each_node_once_with_bytes_and_reasons() -> None:
    report = placement(partition(diamond(), [Takes("acc", frozenset("d"))]))
    assert [(n.node, n.backend) for n in report.nodes] == [
        ("a", "cpu"),
        ("b", "cpu"),
        ("c", "cpu"),
        ("d", "acc"),
    ]
    assert [(r.bytes_in, r.bytes_out, r.measured_s) for r in report.regions] == [
        (12, 24, None),
        (24, 12, None),
    ]
    text = report.to_text()
    assert "not wanted" in text
    assert "matches one" in text
    assert report.to_json()["problems"] == []


def test_large_graph_is_cut_into_functions_and_segments_of_a_moderate_size() -> None:
    b = GraphBuilder("long")
    value = b.input("x", (3,), "int32")
    for number in range(150):
        value = b.op("add", value, b.constant(np.int32([number, 1, 2])))
    graph = b.finish(value)
    parts = partition(graph)
    assert max(len(p.region.nodes) for p in parts.regions) <= 16
    plan = make_plan(parts)
    assert len(plan.segments) > 1
    values = inputs_of(graph)
    found = run_plan(parts, values)[value]
    np.testing.assert_array_equal(found, execute(graph, values)[0])


def test_buffers_are_shared_by_values_that_do_not_live_at_once() -> None:
    b = GraphBuilder("chain")
    value = b.input("x", (1000,), "int32")
    for _ in range(10):
        value = b.op("relu", value)
    graph = b.finish(value)
    every = Takes("acc", frozenset(node.name for node in graph.nodes), joins=False)
    plan = make_plan(partition(graph, [every]))
    assert len(plan.steps) == 10
    assert plan.buffer_bytes == 2 * 4000
    (segment,) = plan.segments
    assert [b.lifetimes[:2] for b in segment.buffers] == [((0, 1), (2, 3)), ((1, 2), (3, 4))]


class Packs(Takes):
    """Gets its constant packed: as another array than the graph's."""

    def compile(self, region: Region, options: Any) -> FunctionCode:
        (array,) = region.graph.constants.values()
        return FunctionCode(lower(region.graph), "llvm", (array + 1,))


def test_packed_array_takes_no_constants_name() -> None:
    """It is named after its region; a constant of the graph may have just that name."""
    packs = Packs("acc", frozenset("y"))

    def plan_with(name: str) -> Plan:
        b = GraphBuilder("net")
        c = b.constant(np.int32([2, 3, 4, 5]), name)
        graph = b.finish(b.op("add", b.op("multiply", b.input("x", (4,), "int32"), c, name="y"), c))
        return make_plan(partition(graph, [packs]))

    first, _ = plan_with("c").steps
    plan = plan_with(first.constants[0])
    held = {step.placed.region.backend: plan.constants[step.constants[0]] for step in plan.steps}
    assert {name: array.tolist() for name, array in held.items()} == {
        "acc": [3, 4, 5, 6],
        CPU: [2, 3, 4, 5],
    }


def test_lowered_region_keeps_the_order_of_its_interface() -> None:
    graph = diamond()
    part = extract(graph, "part", [graph.makers["d"], graph.makers["c"]], ["d"])
    function = lower(part)
    assert [p.buffer.name for p in function.params] == ["in0", "in1", "out0"]
    assert lower(replace(part, name="other")).name == "other"
