"""Contract tests of a backend of graphs: what `farm.graph` relies on when it gives away part of a graph.

Owns: the checks, and the graphs that they are made with. Does not own: guarding a backend (`farm.graph.guard`).

Invariant: no check is passed by saying no: a backend that takes no node of any graph fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from farm.errors import FarmError
from farm.graph import (
    Backend,
    Graph,
    GraphBuilder,
    GraphModule,
    Partition,
    build_graph,
    execute,
    partition,
)
from farm.graph.backend import Option
from farm.graph.claims import NO_REASON
from farm.ir import serialise
from farm.porting.findings import Finding
from farm.runtime.local import load_local

MIN_REASON = 8
FLOAT_RTOL, FLOAT_ATOL = 1e-3, 1e-5


def check_backend(
    backend: Backend,
    graphs: Iterable[tuple[str, Graph]] = (),
    *,
    own_only: bool = False,
    seed: int = 0,
) -> Iterator[Finding]:
    """Yield what checks of a backend find.

    Parameters
    ----------
    graphs
        Graphs of your own with a label each, checked besides those that the farm brings.
    own_only
        Leave out those that the farm brings.
    """
    taken = False
    for label, graph in (*graphs, *(() if own_only else probe_graphs(seed))):
        try:
            parts = partition(graph, [backend])
        except FarmError as error:
            yield Finding("graphs", label, error.message)
            continue
        yield Finding("graphs", label, "; ".join(parts.problems))
        yield from _reasons(label, parts)
        if not parts.problems and any(placed.code is not None for placed in parts.regions):
            taken = True
            yield from _taken(label, graph, backend, parts, seed)
    if not taken:
        yield Finding("graphs", _name(backend), "it takes no node of any graph; pass one of yours")


def _name(backend: Backend) -> str:
    try:
        return str(backend.name)
    except Exception:  # noqa: BLE001 - others' code, which a finding tells of
        return type(backend).__name__


def _reasons(label: str, parts: Partition) -> Iterator[Finding]:
    """Yield for each reason why the backend did not take nodes whether it is one, and that no yes was taken back."""
    refused = [node for p in parts.regions if p.code is None for node in p.region.nodes]
    for why in dict.fromkeys(parts.reasons[node.name] for node in refused):
        backend, colon, said = why.partition(": ")
        if not colon or not backend.isidentifier():
            continue  # no pattern, or a problem that was told
        reason = said.rpartition(": ")[2]
        problem = ""
        if said.startswith("does not compile"):
            problem = f"its check said yes, but it {said}"
        elif len(reason) < MIN_REASON or reason == NO_REASON:
            problem = f"refused without a reason ({reason!r})"
        yield Finding("refusal", f"{label}: {reason}", problem)


def _taken(
    label: str, graph: Graph, backend: Backend, parts: Partition, seed: int
) -> Iterator[Finding]:
    """Yield what a graph shows of which the backend takes part."""
    again = partition(graph, [backend])
    yield Finding(
        "same code", label, "" if _code(parts) == _code(again) else "compiled twice, it differs"
    )
    yield Finding("graph results", label, _wrong(graph, backend, {}, seed))
    for options in _choices(backend):
        chosen = ", ".join(f"{knob}={value}" for knob, value in options.items())
        problem = _wrong(graph, backend, {_name(backend): options}, seed)
        yield Finding("graph knobs", f"{label}, {chosen}", problem)


def _choices(backend: Backend) -> list[dict[str, Option]]:
    """Return the middle and the last values of all knobs; the first are the default."""
    knobs = {knob: tuple(values) for knob, values in backend.knobs.items()}
    middle = {knob: values[len(values) // 2] for knob, values in knobs.items()}
    last = {knob: values[-1] for knob, values in knobs.items()}
    return [] if not middle else [middle] if middle == last else [middle, last]


def _code(parts: Partition) -> list[tuple[str, bytes, list[bytes]]]:
    """Return everything that is compiled of a partition's regions, in a form that can be compared."""
    return [
        (p.region.name, serialise(p.code.function), [array.tobytes() for array in p.code.constants])
        for p in parts.regions
        if p.code is not None
    ]


def _wrong(
    graph: Graph, backend: Backend, options: Mapping[str, Mapping[str, Option]], seed: int
) -> str:
    """Return how a graph's outputs differ from the reference, run here; empty: they do not."""
    try:
        built = build_graph(graph, [backend], options=options, strict=True)
        inputs = _inputs(graph, seed)
        with load_local(built.artifact) as module:
            outputs = GraphModule(built, module)(inputs)
    except FarmError as error:
        return error.message
    for name, found, wanted in zip(graph.outputs, outputs, execute(graph, inputs), strict=True):
        if graph.types[name].dtype.is_float:
            same = np.allclose(found, wanted, FLOAT_RTOL, FLOAT_ATOL, equal_nan=True)
        else:
            same = np.array_equal(found, wanted)
        if not same:
            at = tuple(map(int, np.argwhere(found != wanted)[0]))
            return f"{name}{list(at)} is {found[at]}, the reference {wanted[at]}"
    return ""


def _inputs(graph: Graph, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {}
    for name in graph.inputs:
        kind = graph.types[name]
        if kind.dtype.is_float:
            found[name] = rng.uniform(-4, 4, kind.shape).astype(kind.dtype.numpy)
        else:
            low, high = max(kind.dtype.min, -999), min(kind.dtype.max, 999)
            found[name] = rng.integers(low, high, kind.shape, endpoint=True).astype(
                kind.dtype.numpy
            )
    return found


def probe_graphs(seed: int) -> Iterator[tuple[str, Graph]]:
    """Yield graphs with a label each: quantised layers of odd and even sizes, alone and around what few take."""
    rng = np.random.default_rng(seed)
    for rows, inputs, outputs in ((1, 1, 1), (8, 16, 16), (7, 9, 13)):
        b = GraphBuilder("dense")
        y = b.input("x", (rows, inputs), "int8")
        yield f"dense {rows}x{outputs}x{inputs}", b.finish(_dense(b, rng, y, outputs))
    for size, channels, outputs, stride in ((5, 3, 8, 1), (6, 8, 16, 2), (4, 5, 7, 1)):
        for layout in ("NHWC", "NCHW"):
            label = f"convolution {size}x{size}x{channels} to {outputs}, stride {stride}, {layout}"
            yield label, _convolution(rng, size, channels, outputs, stride, layout)
    b = GraphBuilder("pair")
    first = _dense(b, rng, b.input("x", (4, 8), "int8"), 16)
    real = b.op("leaky_relu", b.op("dequantize", first, b.constant(np.float32(0.5))), slope=0.25)
    again = b.op("quantize", real, b.constant(np.float32(0.25)))
    yield "two layers around floats", b.finish(_dense(b, rng, again, 8))
    b = GraphBuilder("floats")
    w = b.constant(rng.uniform(-1, 1, (5, 6)).astype(np.float32))
    yield "dense of floats", b.finish(b.op("relu", b.op("dense", b.input("x", (3, 6)), w)))


def _dense(b: GraphBuilder, rng: np.random.Generator, x: str, outputs: int) -> str:
    weight = b.constant(rng.integers(-127, 128, (outputs, b.type_of(x).shape[1])).astype(np.int8))
    bias = b.constant(rng.integers(-9999, 9999, outputs).astype(np.int32))
    return _rescaled(b, rng, b.op("add", b.op("dense", x, weight), bias), outputs, -1)


def _rescaled(b: GraphBuilder, rng: np.random.Generator, x: str, outputs: int, axis: int) -> str:
    factors = b.constant(rng.integers(1 << 30, 1 << 31, outputs).astype(np.int32))
    shift = b.constant(rng.integers(37, 41, outputs).astype(np.int32))
    scaled: Sequence[str] = (x, factors, shift)
    return b.op("relu", b.op("requantize", *scaled, axis=axis, zero_point=3))


def _convolution(
    rng: np.random.Generator, size: int, channels: int, outputs: int, stride: int, layout: str
) -> Graph:
    b, last = GraphBuilder("convolution"), layout == "NHWC"
    image = (1, size, size, channels) if last else (1, channels, size, size)
    shape = (3, 3, channels, outputs) if last else (outputs, channels, 3, 3)
    weight = b.constant(rng.integers(-127, 128, shape).astype(np.int8))
    x = b.input("x", image, "int8")
    y = b.op("conv2d", x, weight, layout=layout, padding=[1, 1], stride=[stride, stride])
    bias = rng.integers(-9999, 9999, outputs).astype(np.int32)
    y = b.op("add", y, b.constant(bias if last else bias.reshape(-1, 1, 1)))
    return b.finish(_rescaled(b, rng, y, outputs, 3 if last else 1))
