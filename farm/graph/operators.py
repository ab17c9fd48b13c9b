"""Operators of a graph: versioned schemas, and how each becomes a tensor expression.

Owns: names, versions, attributes and arity. What an operator computes is `farm.ops`'s, which also checks shapes and
types; what it means in plain arithmetic is in `farm.graph.reference`.

Invariant: a version that was released never changes; a change of meaning or attributes is a new version.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from farm import ops, te
from farm.errors import InvalidGraph
from farm.graph.attributes import Attribute, AttributeKind, AttributeSpec
from farm.graph.types import Quantisation, ValueType
from farm.te import Tensor

Lower = Callable[..., Tensor]
"""``(*tensors, **attributes) -> tensor``; raises InvalidFunction where the operands do not fit."""

MANY = 32
"""Operands of one node: a function takes 64 parameters."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One version of one operator.

    Attributes
    ----------
    least, most
        How many operands it takes.
    elementwise
        Whether each element of the result needs only the elements at its place (broadcast ones included).
    keeps
        Whether the result's integers stand for what the first operand's do.
    commutes
        Whether its two operands may change places.
    """

    name: str
    version: int
    least: int
    most: int
    attributes: Mapping[str, AttributeSpec]
    lower: Lower
    elementwise: bool = False
    keeps: bool = False
    commutes: bool = False

    def result_type(
        self, operands: Sequence[ValueType], attributes: Mapping[str, Any]
    ) -> ValueType:
        """Return the type of the result, without quantisation but where it is kept.

        Raises
        ------
        InvalidGraph
            There are too few or too many operands.
        InvalidFunction
            They do not fit each other or the attributes; the message says what and why.
        """
        if not self.least <= len(operands) <= self.most:
            wanted = f"{self.least}" + f" to {self.most}" * (self.most > self.least)
            raise InvalidGraph(f"{len(operands)} operands; it takes {wanted}")
        plain = tuple(kind.plain for kind in operands)
        result = _result_type(self.name, self.version, plain, tuple(attributes.items()))
        return replace(result, quantisation=self._kept(operands, result))

    def _kept(self, operands: Sequence[ValueType], result: ValueType) -> Quantisation | None:
        first = operands[0].quantisation if operands and self.keeps else None
        if first is None or first.axis is not None or result.dtype is not operands[0].dtype:
            return None
        return first


@functools.lru_cache(maxsize=4096)
def _result_type(
    name: str,
    version: int,
    operands: tuple[ValueType, ...],
    attributes: tuple[tuple[str, Any], ...],
) -> ValueType:
    """Return the type of a result as the tensor expression has it, which is slow to make."""
    tensors = [
        te.placeholder(kind.shape, kind.dtype, f"operand{place}")
        for place, kind in enumerate(operands)
    ]
    result = find_operator(name, version).lower(*tensors, **dict(attributes))
    return ValueType(result.shape, result.dtype)


_FLAG, _INT, _NUMBER = AttributeKind.FLAG, AttributeKind.INT, AttributeKind.NUMBER
_INTS, _AXES, _PAIRS = AttributeKind.INTS, AttributeKind.AXES, AttributeKind.PAIRS
_TEXT, _DTYPE = AttributeKind.TEXT, AttributeKind.DTYPE


def _required(kind: AttributeKind) -> AttributeSpec:
    return AttributeSpec(kind, required=True)


def _default(kind: AttributeKind, value: Attribute) -> AttributeSpec:
    return AttributeSpec(kind, value)


def _cast(x: Tensor, *, dtype: str) -> Tensor:
    return te.compute(x.shape, lambda *at: x[at].astype(dtype), name="cast")


def _concat(*tensors: Tensor, axis: int) -> Tensor:
    return ops.concat(tensors, axis)


def _quantised(lower: Lower) -> Lower:
    """Let the zero point be left out."""

    def lowered(x: Tensor, scale: Tensor, *zero_point: Tensor, axis: int, dtype: str) -> Tensor:
        return lower(x, scale, *zero_point, dtype=dtype, axis=axis)

    return lowered


_CONVOLUTION = {
    "stride": _default(_INTS, (1, 1)),
    "padding": _default(_INTS, (0, 0)),
    "dilation": _default(_INTS, (1, 1)),
    "groups": _default(_INT, 1),
    "layout": _default(_TEXT, "NCHW"),
}
_WINDOW = {
    "kernel": _required(_INTS),
    "stride": _required(_INTS),
    "padding": _default(_INTS, (0, 0)),
    "layout": _default(_TEXT, "NCHW"),
}
_REDUCTION = {"axes": _default(_AXES, None), "keepdims": _default(_FLAG, False)}
_SCALING = {"axis": _default(_INT, -1)}


def _table() -> Mapping[str, Mapping[int, Operator]]:
    found: dict[str, dict[int, Operator]] = {}

    def add(
        name: str,
        count: int | tuple[int, int],
        lower: Lower,
        attributes: Mapping[str, AttributeSpec] | None = None,
        *,
        version: int = 1,
        **facts: bool,
    ) -> None:
        least, most = count if isinstance(count, tuple) else (count, count)
        made = Operator(name, version, least, most, attributes or {}, lower, **facts)
        found.setdefault(name, {})[version] = made

    for binary, commutes in (
        ("add", True),
        ("subtract", False),
        ("multiply", True),
        ("divide", False),
        ("maximum", True),
        ("minimum", True),
    ):
        add(binary, 2, getattr(ops, binary), elementwise=True, commutes=commutes)
    for unary in ("exp", "gelu", "sigmoid", "sqrt", "tanh"):
        add(unary, 1, getattr(ops, unary), elementwise=True)
    add("relu", 1, ops.relu, elementwise=True)
    slope = {"slope": _default(_NUMBER, 0.01)}
    add("leaky_relu", 1, ops.leaky_relu, slope, elementwise=True)
    limits = {"low": _required(_NUMBER), "high": _required(_NUMBER)}
    add("clip", 1, ops.clip, limits, elementwise=True, keeps=True)
    add("lookup", 2, ops.lookup)
    add("cast", 1, _cast, {"dtype": _required(_DTYPE)}, elementwise=True)

    turned = {"transpose_a": _default(_FLAG, False), "transpose_b": _default(_FLAG, False)}
    add("matmul", 2, ops.matmul, turned)
    add("dense", (2, 3), ops.dense)
    add("conv2d", 2, ops.conv2d, _CONVOLUTION)
    single = {name: _default(_INT, value) for name, value in (("stride", 1), ("padding", 0))}
    single |= {name: _default(_INT, 1) for name in ("dilation", "groups")}
    add("conv1d", 2, ops.conv1d, single)
    add("max_pool2d", 1, ops.max_pool2d, _WINDOW, keeps=True)
    add("avg_pool2d", 1, ops.avg_pool2d, _WINDOW)
    for reduction in ("sum", "mean", "max", "min"):
        add(reduction, 1, getattr(ops, reduction), _REDUCTION, keeps=reduction in ("max", "min"))
    add("softmax", 1, ops.softmax)
    add("layer_norm", 3, ops.layer_norm, {"epsilon": _default(_NUMBER, 1e-5)})

    add("transpose", 1, ops.transpose, {"axes": _default(_AXES, None)}, keeps=True)
    add("reshape", 1, ops.reshape, {"shape": _required(_INTS)}, keeps=True)
    around = {"around": _required(_PAIRS), "value": _default(_NUMBER, 0)}
    add("pad", 1, ops.pad, around, keeps=True)
    add("concat", (1, MANY), _concat, {"axis": _default(_INT, 0)})
    sizes = {"size": _required(_INTS), "method": _default(_TEXT, "nearest")}
    add("resize", 1, ops.resize, sizes)

    to_integer, to_float = (_SCALING | {"dtype": _default(_DTYPE, t)} for t in ("int8", "float32"))
    add("quantize", (2, 3), _quantised(ops.quantize), to_integer, elementwise=True)
    add("dequantize", (2, 3), _quantised(ops.dequantize), to_float, elementwise=True)
    rescaling = to_integer | {"zero_point": _default(_INT, 0)}
    add("requantize", 3, ops.requantize, rescaling, elementwise=True)
    return MappingProxyType({name: MappingProxyType(all_) for name, all_ in found.items()})


OPERATORS = _table()
"""By name, then by version."""


def find_operator(name: str, version: int | None = None) -> Operator:
    """Return an operator; its newest version unless one is named.

    Raises
    ------
    InvalidGraph
        It, or that version of it, is unknown here; the message lists what is known.
    """
    versions = OPERATORS.get(name) if isinstance(name, str) else None
    if versions is None:
        raise InvalidGraph(
            f"operator {str(name)[:80]!r}: unknown; known are {', '.join(sorted(OPERATORS))}"
        )
    if version is None:
        return versions[max(versions)]
    if version not in versions:
        known = ", ".join(map(str, sorted(versions)))
        raise InvalidGraph(
            f"operator {name}: version {version} is unknown here (it has {known}); update kernel-farm"
        )
    return versions[version]
