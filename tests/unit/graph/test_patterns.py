"""Patterns: what they match, and how a match is told."""

from __future__ import annotations

import numpy as np
import pytest

from farm.errors import InvalidGraph
from farm.graph import (
    Graph,
    GraphBuilder,
    Match,
    Pattern,
    Quantisation,
    any_op,
    constant,
    either,
    op,
    optional,
    wildcard,
)
from farm.graph.match import match_at
from farm.graph.pattern import PatternNode


def matched(graph: Graph, root: PatternNode, value: str) -> Match | str | None:
    return match_at(Pattern("p", root), graph, graph.makers[value])


def names(found: Match | str | None) -> list[str]:
    assert isinstance(found, Match)
    return [node.name for node in found.nodes]


def test_match_lists_nodes_inputs_outputs_constants_and_names(pair: Graph) -> None:
    product = op("dense", wildcard("x"), constant("w"), name="product")
    root = op("requantize", op("add", product, constant("b")), constant(), constant("s"))
    found = matched(pair, root, "layer1")
    assert names(found) == ["product1", "total1", "layer1"]
    assert isinstance(found, Match)
    assert (found.inputs, found.outputs) == (("x",), ("layer1",))
    assert found.constants == ("weight1", "bias1", "multiplier1", "shift1")
    assert dict(found.values) == {
        "x": "x",
        "w": "weight1",
        "b": "bias1",
        "s": "shift1",
        "product": "product1",
    }
    assert found.constant("w").shape == (20, 24)
    assert found.node("product").operator == "dense"
    assert str(found.type_of("x")) == "int8[6, 24]"
    assert not found.has("bias")
    for name, call, why in (
        ("y", found.value, "it has no 'y'"),
        ("x", found.constant, "'x' is no constant"),
        ("w", found.node, "'w' is no node"),
    ):
        with pytest.raises(InvalidGraph, match=why):
            call(name)


def test_check_sees_quantisation_of_the_whole_match() -> None:
    b = GraphBuilder("g")
    x = b.input("x", (2,), "int8", Quantisation((0.5,), (3,)))
    y = b.op("clip", x, low=0, high=5, quantisation=Quantisation((0.25,), (0,)), name="y")
    graph = b.finish(y)
    found = matched(graph, op("clip", wildcard("x"), name="y"), "y")
    assert isinstance(found, Match)
    assert found.type_of("x").quantisation == Quantisation((0.5,), (3,))
    assert found.type_of("y").quantisation == Quantisation((0.25,), (0,))


def branches() -> Graph:
    b = GraphBuilder("g")
    x, y = b.input("x", (2, 2)), b.input("y", (2, 2))
    a = b.op("exp", x, name="a")
    r = b.op("relu", a, name="r")
    b.op("add", y, r, name="s")
    b.op("add", r, r, name="twice")
    b.op("clip", "s", low=0, high=6, name="six")
    return b.finish("six", "twice")


def test_commutative_operator_matches_in_either_order() -> None:
    graph = branches()
    root = op("add", op("relu", wildcard()), wildcard("other"))
    found = matched(graph, root, "s")
    assert found == "r is also read by twice (add), and the pattern p uses it up"
    turned = matched(graph, op("add", wildcard("first"), wildcard("second")), "s")
    assert isinstance(turned, Match)
    assert turned.value("first") == "y"


def test_same_wildcard_means_the_same_value() -> None:
    graph = branches()
    same = wildcard("v")
    assert names(matched(graph, op("add", same, same), "twice")) == ["twice"]
    assert names(matched(graph, op("add", wildcard("v"), wildcard("v")), "twice")) == ["twice"]
    assert matched(graph, op("add", same, same), "s") is None
    assert matched(graph, op("add", wildcard("v"), wildcard("v")), "s") is None


def test_shared_pattern_node_means_the_same_node() -> None:
    b = GraphBuilder("g")
    x = b.input("x", (2,))
    left, right = b.op("exp", x, name="l"), b.op("exp", x, name="r")
    graph = b.finish(b.op("add", left, left, name="one"), b.op("add", left, right, name="two"))
    shared = op("exp", wildcard())
    assert matched(graph, op("add", shared, shared), "two") is None
    assert "l is also read by two" in str(matched(graph, op("add", shared, shared), "one"))


@pytest.mark.parametrize(
    ("attributes", "fits"),
    [({"low": 0}, True), ({"low": 1}, False), ({"high": lambda value: value > 5}, True)],
)
def test_attributes_are_compared_or_asked(attributes: dict[str, object], fits: bool) -> None:
    found = matched(branches(), op("clip", wildcard(), **attributes), "six")
    assert (found is not None) == fits


def test_optional_node_may_be_missing() -> None:
    graph = branches()
    root = optional("clip", op("add", wildcard(), wildcard(), name="sum"), name="limit")
    with_limit, without = matched(graph, root, "six"), matched(graph, root, "twice")
    assert names(with_limit) == ["s", "six"]
    assert names(without) == ["twice"]
    assert isinstance(without, Match)
    assert not without.has("limit")


def test_either_takes_the_first_that_matches() -> None:
    graph = branches()
    root = either(op("clip", op("relu", wildcard())), any_op("clip|relu", name="any"))
    found = matched(graph, root, "six")
    assert names(found) == ["six"]


def test_either_that_stands_twice_stands_for_one_value() -> None:
    b = GraphBuilder("g")
    x, y = b.input("x", (2,)), b.input("y", (2,))
    some, other = b.op("exp", x, name="some"), b.op("tanh", y, name="other")
    twice = b.op("multiply", some, some, name="twice")
    graph = b.finish(twice, b.op("multiply", some, other, name="two"))
    one = either(op("exp", wildcard()), op("tanh", wildcard()), wildcard())
    found = matched(graph, op("multiply", one, one), "two")
    assert found is None
    apart = op("multiply", either(wildcard()), either(wildcard()))
    assert names(matched(graph, apart, "two")) == ["two"]
    assert names(matched(graph, op("multiply", one, one), "twice")) == ["twice"]


def test_output_of_the_graph_inside_a_match_is_not_used_up() -> None:
    b = GraphBuilder("g")
    x = b.input("x", (2,))
    e = b.op("exp", x, name="e")
    graph = b.finish(e, b.op("relu", e, name="r"))
    why = matched(graph, op("relu", op("exp", wildcard())), "r")
    assert why == "e is an output of the graph, and the pattern p uses it up"


def test_constant_matches_only_constants(pair: Graph) -> None:
    assert matched(pair, op("dense", constant(), wildcard()), "product1") is None
    assert matched(pair, op("dense", wildcard(), constant()), "product1") is not None


def test_pattern_of_wildcards_takes_nothing(pair: Graph) -> None:
    assert matched(pair, wildcard(), "layer2") is None


def test_search_ends_however_many_ways_there_are() -> None:
    b = GraphBuilder("g")
    value = b.input("x", (2,))
    for _ in range(40):
        value = b.op("add", value, b.input(f"y{_}", (2,)))
    graph = b.finish(value)
    root: PatternNode = op("exp", wildcard())
    for _ in range(40):
        root = either(
            op("add", root, wildcard()), op("add", wildcard(), root), op("add", root, wildcard())
        )
    assert matched(graph, root, value) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: op("gemm", wildcard()), "operator 'gemm': unknown"),
        (lambda: op("clip", wildcard(), lo=1), "clip has no attribute 'lo'; it has high, low"),
        (lambda: op("relu", "x"), "operand 0 of relu is no pattern"),
        (either, "either of nothing"),
    ],
)
def test_pattern_that_cannot_be_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidGraph, match=message):
        make()


def test_array_constants_are_those_of_the_graph(pair: Graph) -> None:
    found = matched(pair, op("dense", wildcard(), constant("w")), "product1")
    assert isinstance(found, Match)
    assert np.shares_memory(found.constant("w"), pair.constants["weight1"])
