"""Graphs: rules, the builder, text and documents."""

from __future__ import annotations

import contextlib
import doctest
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import farm.graph.builder
import farm.graph.pattern
from farm.errors import InvalidArguments, InvalidGraph
from farm.graph import (
    Graph,
    GraphBuilder,
    Node,
    Quantisation,
    execute,
    from_json,
    to_json,
    value_type,
)

F = value_type((2, 3))


def chain(**changes: Any) -> Graph:
    """Return ``relu(exp(x))``, changed."""
    parts: dict[str, Any] = {
        "name": "g",
        "nodes": (Node("a", "exp", ("x",), "p"), Node("b", "relu", ("p",), "q")),
        "inputs": ("x",),
        "outputs": ("q",),
        "types": {"x": F, "p": F, "q": F},
    }
    return Graph(**{**parts, **changes})


def test_nodes_are_put_in_an_order_in_which_they_run() -> None:
    graph = chain(nodes=(Node("b", "relu", ("p",), "q"), Node("a", "exp", ("x",), "p")))
    assert [node.name for node in graph.nodes] == ["a", "b"]
    assert graph.makers["q"].name == "b"
    assert [node.name for node in graph.readers["p"]] == ["b"]


CIRCLE = (Node("a", "add", ("x", "q"), "p"), Node("b", "relu", ("p",), "q"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": ()}, "0 nodes; use 1 to"),
        ({"name": "é"}, "graph: bad name"),
        ({"nodes": CIRCLE}, r"nodes wait for each other in a circle \(.*a -> b.*\); break it"),
        (
            {"nodes": (Node("a", "exp", ("z",), "p"), Node("b", "relu", ("p",), "q"))},
            "reads 'z', which nothing makes",
        ),
        ({"types": {"x": F, "p": F}}, "value q has no type"),
        ({"types": {"x": F, "p": F, "q": F, "r": F}}, "type of r, which nothing makes"),
        (
            {"types": {"x": F, "p": F, "q": value_type((2, 3), "int8")}},
            r"makes float32\[2, 3\], but q is int8",
        ),
        (
            {"types": {"x": value_type((2, 3), "int8"), "p": F, "q": F}},
            r"node a \(exp\): exp: operand0 is int8; use a float type",
        ),
        ({"outputs": ()}, "name one or more values, each once"),
        ({"outputs": ("q", "q")}, "name one or more values, each once"),
        ({"outputs": ("x",)}, "output x is made by no node"),
        ({"outputs": ("p",)}, r"node b \(relu\) makes q, which nothing uses"),
        ({"inputs": ("x", "p"), "types": {"x": F, "p": F, "q": F}}, "value p is made twice"),
        (
            {"nodes": (Node("a", "exp", ("x",), "p"), Node("a", "relu", ("p",), "q"))},
            "two nodes are named a",
        ),
        (
            {"nodes": (Node("a", "exp", ("x",), "p", version=2), Node("b", "relu", ("p",), "q"))},
            "operator exp: version 2 is unknown",
        ),
        (
            {"nodes": (Node("a", "log", ("x",), "p"), Node("b", "relu", ("p",), "q"))},
            r"node a \(log\): operator 'log': unknown",
        ),
        (
            {"nodes": (Node("a", "exp", ("x",), "p", {"base": 2}), Node("b", "relu", ("p",), "q"))},
            "unknown attribute 'base'; it has none",
        ),
        ({"constants": {"c": np.zeros(2, np.complex64)}}, "constant: complex64 cannot be held"),
        ({"constants": {"c": np.int8(1)}}, "constant: int8 is no array; pass numpy.array of it"),
        ({"constants": {"c": [1, 2]}}, "constant: list is no array"),
        (
            {"constants": {"c": np.zeros(2, np.int8)}, "types": {"x": F, "p": F, "q": F, "c": F}},
            r"constant c is int8\[2\], its type says float32",
        ),
    ],
)
def test_graph_that_breaks_a_rule_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGraph, match=message):
        chain(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 0), "int8"), "bad shape"),
        (((1 << 30, 1 << 30), "int8"), "too many elements"),
        (((2,), "float32", Quantisation((0.5,), (0,))), "only integers have one"),
        (((2,), "int8", Quantisation((0.5,), (200,))), "zero point 200 is no int8"),
        (((2,), "int8", Quantisation((0.5, 0.5, 0.5), (0, 0, 0), 0)), "3 scales on axis 0"),
        (((2,), "int8", Quantisation((0.5,), (0,), 1)), "1 scales on axis 1"),
    ],
)
def test_type_that_cannot_be_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidGraph, match=message):
        value_type(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ((), ()),
        (("a",), (0,)),
        ((1.0,), ("z",)),
        ((1.0,), (0.5,)),
        ((1.0,), (0, 0)),
        ((0.0,), (0,)),
        ((float("inf"),), (0,)),
        ((1.0, 2.0), (0, 0)),
    ],
)
def test_quantisation_that_cannot_be_is_refused(arguments: Any) -> None:
    with pytest.raises(InvalidGraph, match="quantisation: "):
        Quantisation(*arguments)


def test_builder_refuses_at_the_call_and_goes_on() -> None:
    b = GraphBuilder("g")
    x = b.input("x", (2, 3))
    with pytest.raises(InvalidGraph, match="value x is made twice"):
        b.constant(1, "x")
    with pytest.raises(InvalidGraph, match=r"node y \(exp\): no value 'z'; make it first"):
        b.op("exp", "z", name="y")
    with pytest.raises(InvalidGraph, match="no value 'z'; make it first"):
        b.type_of("z")
    y = b.op("exp", x, name="y")  # the name is still free
    assert b.finish(y).outputs == ("y",)


@pytest.mark.parametrize("dtype", ["int16", "int32", "uint64", "float16", "float32", "float64"])
def test_constant_of_another_byte_order_is_converted_by_the_builder_and_refused_elsewhere(
    dtype: str,
) -> None:
    other = np.dtype(dtype).newbyteorder()
    values = np.arange(6).reshape(2, 3).astype(other)
    b = GraphBuilder("g")
    x = b.input("x", (2, 3), dtype)
    graph = b.finish(b.op("add", x, b.constant(values, "c")))
    assert graph.constants["c"].dtype == np.dtype(dtype)
    np.testing.assert_array_equal(graph.constants["c"], values)
    np.testing.assert_array_equal(from_json(to_json(graph)).constants["c"], values)
    with pytest.raises(InvalidGraph, match="another machine's byte order; convert it"):
        chain(constants={"c": values})


def test_constants_of_any_strides_survive_a_document() -> None:
    values = np.arange(24, dtype=np.int16).reshape(4, 6)
    for some in (
        values[::-1],
        values[:, ::2],
        values.T,
        values[1:2, 3:4],
        values[2, 3:4].reshape(()),
    ):
        again = from_json(to_json(chain(constants={"c": some})))
        np.testing.assert_array_equal(again.constants["c"], some)


@pytest.mark.parametrize(
    ("operand", "message"),
    [
        (np.zeros((2, 3), np.float32), "operand ndarray is no value; pass its name"),
        (None, "operand NoneType is no value"),
        (["x"], "operand list is no value"),
        ("y", "no value 'y'; make it first"),
    ],
)
def test_operand_that_is_no_name_is_refused(operand: Any, message: str) -> None:
    b = GraphBuilder("g")
    b.input("x", (2, 3))
    with pytest.raises(InvalidGraph, match=message):
        b.op("relu", operand)


@pytest.mark.parametrize("array", [[[1], [1, 2]], [object()], 10**400, ["text"]])
def test_constant_that_is_no_array_of_numbers_is_refused(array: Any) -> None:
    with pytest.raises(InvalidGraph, match="constant"):
        GraphBuilder("g").constant(array)


def test_builder_tells_what_quantised_values_stand_for() -> None:
    b = GraphBuilder("g")
    x = b.input("x", (2, 3))
    scales = b.constant(np.float32([0.5, 0.25, 2]), "scales")
    zeros = b.constant(np.int8([0, 1, 2]), "zeros")
    q = b.op("quantize", x, scales, zeros)
    assert b.type_of(q).quantisation == Quantisation((0.5, 0.25, 2.0), (0, 1, 2), 1)
    one = b.op("quantize", x, b.constant(np.float32(0.5)), dtype="uint8")
    assert b.type_of(one).quantisation == Quantisation((0.5,), (0,))
    assert b.type_of(b.op("clip", one, low=0, high=9)).quantisation == Quantisation((0.5,), (0,))
    assert b.type_of(b.op("add", one, one)).quantisation is None


def test_quantised_types_survive_a_document(pair: Graph) -> None:
    again = from_json(to_json(pair))
    assert again.types == pair.types
    assert pair.types["again"].quantisation == Quantisation((0.03125,), (0,))


def test_document_of_a_graph_gives_it_back(pair: Graph) -> None:
    data = to_json(pair)
    again = from_json(data)
    assert to_json(again) == data
    assert str(again) == str(pair)
    x = np.arange(6 * 24, dtype=np.int8).reshape(6, 24)
    np.testing.assert_array_equal(execute(pair, [x])[0], execute(again, {"x": x})[0])


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    listed = enumerate(value) if isinstance(value, list) else ()
    items = value.items() if isinstance(value, dict) else listed
    for key, inner in items:
        found += _paths(inner, (*path, key))
    return found


def small() -> Graph:
    """Return a graph that has a bit of everything that documents have."""
    b = GraphBuilder("g")
    x = b.input("x", (2, 3))
    q = b.op("quantize", x, b.constant(np.float32([0.5, 1, 2]), "scales"), name="q")
    return b.finish(b.op("pad", q, around=[(0, 1), (1, 0)], name="p"))


DOCUMENT = json.loads(to_json(small()))
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(st.sampled_from(_paths(DOCUMENT)[1:]), JUNK, st.booleans())
def test_document_with_anything_anywhere_is_read_or_refused(
    path: tuple[Any, ...], junk: Any, drop: bool
) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    if drop and isinstance(inner, dict):
        del inner[path[-1]]
    else:
        inner[path[-1]] = junk
    with contextlib.suppress(InvalidGraph):
        graph = from_json(json.dumps(document))
        assert to_json(from_json(to_json(graph))) == to_json(graph)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("types", "x", "dtype"), "int9", "dtype: unknown"),
        (("types", "x", "shape"), 3, "shape of types of 'x' is no list"),
        (("types", "q", "quantisation", "scales", 0), "1", "is no number"),
        (("types", "q", "quantisation", "scales", 0), 10**400, "beyond the largest number"),
        (("types", "q", "quantisation", "axis"), 0, "3 scales on axis 0"),
        (("constants", "scales", "data"), "?", "data of constants of 'scales' is no base64"),
        (("constants", "scales", "data"), "AAAA", "has 3 bytes; float32\\[3\\] needs 12"),
        (
            ("constants", "scales"),
            {"shape": [1], "dtype": "bool", "data": "Ag=="},
            "neither 0 nor 1",
        ),
        (("nodes", 0, "attributes"), [], "attributes of nodes\\[0\\] are no object"),
        (("nodes", 0, "version"), True, "version of nodes\\[0\\] is no integer"),
        (("nodes", 0, "extra"), 1, "it needs exactly"),
        (("inputs",), ["x"] * 60_001, "inputs is no list of at most"),
        (("inputs",), [f"x{n}" for n in range(59_999)], "values; use at most 60000"),
    ],
)
def test_document_with_a_wrong_field_is_refused_with_its_place(
    path: tuple[Any, ...], value: Any, message: str
) -> None:
    document = json.loads(to_json(small()))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(InvalidGraph, match=message):
        from_json(json.dumps(document))


def test_document_with_a_key_twice_is_refused(pair: Graph) -> None:
    text = to_json(pair).decode()
    for key in ('"name":"pair"', '"dtype":"int8"', '"transpose_a":false'):
        if key in text:
            twice = text.replace(key, f"{key},{key}", 1)
            with pytest.raises(InvalidGraph, match="is there twice; keep one"):
                from_json(twice)


def test_message_about_keys_is_short_however_long_they_are(pair: Graph) -> None:
    value = json.loads(to_json(pair)) | {"k" * 100_000: 1}
    with pytest.raises(InvalidGraph, match="it needs exactly") as error:
        from_json(json.dumps(value))
    assert len(error.value.message) < 2000


def test_document_that_is_too_long_is_not_even_parsed() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return (1 << 28) + 1

    with pytest.raises(InvalidGraph, match="use at most 268435456"):
        from_json(Long(b"{}"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "format is not"),
        (b'{"format": "kernel-farm graph", "version": 2}', "version 2 is unknown here"),
        (b'{"format": "kernel-farm graph", "version": 1}', "it needs exactly"),
    ],
)
def test_what_is_no_document_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidGraph, match=message):
        from_json(data)


def test_inputs_that_do_not_fit_are_refused(pair: Graph) -> None:
    x = np.zeros((6, 24), np.int8)
    for inputs, message in (
        ([], "0 inputs; pass 1: x"),
        ([x.astype(np.int16)], r"input x does not fit \(has int16\[6, 24\]\); pass int8\[6, 24\]"),
        ([3], r"has int"),
        ({}, "input x is missing"),
        ({"x": x, "y": x}, "no input y"),
    ):
        with pytest.raises(InvalidArguments, match=message):
            execute(pair, inputs)  # type: ignore[arg-type]


def test_text_shows_each_node_with_version_and_what_is_not_default() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (1, 2, 4, 4), "int8", Quantisation((0.5,), (3,)))
    w = b.constant(np.zeros((2, 1, 3, 3), np.int8), "w")
    y = b.op("conv2d", x, w, name="y", groups=2, padding=[1, 1])
    total = b.op("sum", y, name="s", keepdims=True)
    scales = Quantisation((0.5, 1.0), (0, 0), 1)
    graph = b.finish(total, b.op("clip", y, name="c", low=0, high=9, quantisation=scales))
    assert str(graph).splitlines() == [
        "graph net(x: int8[1, 2, 4, 4] scale 0.5 zero 3) -> s, c",
        "  const w: int8[2, 1, 3, 3]",
        "  y: int32[1, 2, 4, 4] = conv2d.1(x, w, padding=[1, 1], groups=2)",
        "  s: int32[1, 1, 1, 1] = sum.1(y, keepdims=true)",
        "  c: int32[1, 2, 4, 4] 2 scales on axis 1 = clip.1(y, low=0, high=9)",
    ]
    with pytest.raises(InvalidGraph, match="no value 'z'; name an input, a constant or what"):
        graph.type_of("z")


@pytest.mark.parametrize("module", [farm.graph.builder, farm.graph.pattern])
def test_examples_in_docstrings_run(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
