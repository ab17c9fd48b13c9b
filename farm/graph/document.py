"""Graphs as JSON documents.

Owns: the form, its version, its limits and checks. Does not own: the rules of graphs (`farm.graph.graph`).

Invariant: ``from_json(to_json(g))`` is `g`; equal graphs give equal bytes; whatever is read, nothing but `InvalidGraph`
is raised, and no more than the document's own size is allocated.

Notes
-----
Constants are base64 of their little-endian bytes. Version history: 1 is the first.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from farm.core.digest import canonical_json
from farm.errors import FarmError, InvalidGraph
from farm.graph.graph import MAX_NODES, MAX_VALUES, Graph, Node
from farm.graph.types import Array, Quantisation, ValueType, value_type
from farm.ir import DType

FORMAT = "kernel-farm graph"
VERSION = 1
MAX_JSON_BYTES = 1 << 28

T = TypeVar("T")


def to_json(graph: Graph) -> bytes:
    """Return a graph as canonical JSON."""
    return canonical_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "name": graph.name,
            "inputs": list(graph.inputs),
            "outputs": list(graph.outputs),
            "types": {name: _type_object(kind) for name, kind in graph.types.items()},
            "constants": {name: _array_object(array) for name, array in graph.constants.items()},
            "nodes": [
                {
                    "name": node.name,
                    "operator": node.operator,
                    "version": node.version,
                    "inputs": list(node.inputs),
                    "output": node.output,
                    "attributes": dict(node.attributes),
                }
                for node in graph.nodes
            ],
        }
    )


def from_json(data: bytes | str) -> Graph:
    """Read a graph and check all of it.

    Raises
    ------
    InvalidGraph
        It is too long, no JSON, of another version, a field is missing, unknown or of the wrong kind, or the graph
        breaks a rule.
    """
    if len(data) > MAX_JSON_BYTES:
        raise _wrong(f"{len(data)} bytes; use at most {MAX_JSON_BYTES}")
    try:
        value = json.loads(data, object_pairs_hook=_pairs)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"no JSON ({error}); pass what to_json gave") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise _wrong(f"format is not {FORMAT!r}; pass what to_json gave")
    if value.get("version") != VERSION:
        raise _wrong(
            f"version {str(value.get('version'))[:20]} is unknown here (it has {VERSION}); update kernel-farm"
        )
    keys = {"format", "version", "name", "inputs", "outputs", "types", "constants", "nodes"}
    fields = _object("document", value, keys)
    try:
        return Graph(
            fields["name"],
            tuple(_list("nodes", fields["nodes"], MAX_NODES, _node)),
            tuple(_list("inputs", fields["inputs"], MAX_VALUES, _text)),
            tuple(_list("outputs", fields["outputs"], MAX_VALUES, _text)),
            _mapping("types", fields["types"], _type),
            _mapping("constants", fields["constants"], _array),
        )
    except InvalidGraph:
        raise
    except FarmError as error:  # an element type that is none
        raise _wrong(error.message) from error


def _wrong(problem: str) -> InvalidGraph:
    return InvalidGraph(f"graph document: {problem}")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object each of whose keys is there once."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _wrong(f"{name[:80]!r} is there twice; keep one")
        found[name] = value
    return found


def _type_object(kind: ValueType) -> dict[str, object]:
    found: dict[str, object] = {"shape": list(kind.shape), "dtype": str(kind.dtype)}
    if kind.quantisation is not None:
        q = kind.quantisation
        found["quantisation"] = {
            "scales": list(q.scales),
            "zero_points": list(q.zero_points),
            "axis": q.axis,
        }
    return found


def _array_object(array: Array) -> dict[str, object]:
    whole = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    little = whole.astype(whole.dtype.newbyteorder("<"), copy=False)
    return {
        "shape": list(array.shape),
        "dtype": array.dtype.name,
        "data": base64.b64encode(little.tobytes()).decode(),
    }


def _object(what: str, value: object, keys: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != keys:
        has: object = type(value).__name__
        if isinstance(value, dict):
            has = sorted(name[:80] for name in value)[:20]
        raise _wrong(f"{what} has {has}; it needs exactly {sorted(keys)}")
    return value


def _list(what: str, value: object, most: int, read: Callable[[str, Any], T]) -> list[T]:
    if not isinstance(value, list) or len(value) > most:
        raise _wrong(f"{what} is no list of at most {most}")
    return [read(f"{what}[{place}]", each) for place, each in enumerate(value)]


def _mapping(what: str, value: object, read: Callable[[str, Any], T]) -> dict[str, T]:
    if not isinstance(value, dict) or len(value) > MAX_VALUES:
        raise _wrong(f"{what} is no object of at most {MAX_VALUES}")
    return {name: read(f"{what} of {name[:80]!r}", each) for name, each in value.items()}


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(f"{what} is no text ({str(value)[:80]!r})")
    return value


def _int(what: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(f"{what} is no integer ({str(value)[:80]!r})")
    return value


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(f"{what} is no number ({str(value)[:80]!r})")
    try:
        return float(value)
    except OverflowError as error:
        raise _wrong(f"{what} is beyond the largest number") from error


def _node(what: str, value: object) -> Node:
    keys = {"name", "operator", "version", "inputs", "output", "attributes"}
    fields = _object(what, value, keys)
    if not isinstance(fields["attributes"], dict):
        raise _wrong(f"attributes of {what} are no object")
    return Node(
        _text(f"name of {what}", fields["name"]),
        _text(f"operator of {what}", fields["operator"]),
        tuple(_list(f"inputs of {what}", fields["inputs"], MAX_VALUES, _text)),
        _text(f"output of {what}", fields["output"]),
        fields["attributes"],
        _int(f"version of {what}", fields["version"]),
    )


def _type(what: str, value: object) -> ValueType:
    if isinstance(value, dict) and "quantisation" in value:
        fields = _object(what, value, {"shape", "dtype", "quantisation"})
        quantisation: Quantisation | None = _quantisation(what, fields["quantisation"])
    else:
        fields, quantisation = _object(what, value, {"shape", "dtype"}), None
    shape = _list(f"shape of {what}", fields["shape"], 64, _int)
    return value_type(tuple(shape), _text(f"dtype of {what}", fields["dtype"]), quantisation)


def _quantisation(what: str, value: object) -> Quantisation:
    fields = _object(f"quantisation in {what}", value, {"scales", "zero_points", "axis"})
    axis = fields["axis"]
    return Quantisation(
        tuple(_list(f"scales in {what}", fields["scales"], MAX_VALUES, _number)),
        tuple(_list(f"zero points in {what}", fields["zero_points"], MAX_VALUES, _int)),
        None if axis is None else _int(f"axis in {what}", axis),
    )


def _array(what: str, value: object) -> Array:
    fields = _object(what, value, {"shape", "dtype", "data"})
    shape = tuple(_list(f"shape of {what}", fields["shape"], 64, _int))
    kind = value_type(shape, _text(f"dtype of {what}", fields["dtype"]))
    try:
        data = base64.b64decode(_text(f"data of {what}", fields["data"]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _wrong(f"data of {what} is no base64 ({error})") from error
    if len(data) != kind.size_bytes:
        raise _wrong(f"{what} has {len(data)} bytes; {kind} needs {kind.size_bytes}")
    if kind.dtype is DType.BOOL and data.strip(b"\0\1"):
        raise _wrong(f"{what} has bytes that are neither 0 nor 1")
    size = kind.dtype.size_bytes
    held = np.frombuffer(data, f"<u{size}").astype(f"u{size}")  # a copy, in this machine's order
    return held.view(kind.dtype.numpy).reshape(shape)
