"""Recognising tensors with a value around them.

Owns: telling that a stage computes what `farm.ops.pad` does. Does not own: what an accelerator makes of it.

Invariant: a `Padding` stands for exactly what its stage computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm import ops, te
from farm.ir import Buffer, DType
from farm.ir.affine import affine, simplified
from farm.ir.expr import Const, Expr, Load, Scalar, Select, Var, map_children
from farm.ir.stmt import For, Store


@dataclass(frozen=True, slots=True)
class Padding:
    """`source` with a value around it: on each axis so many elements before and after."""

    source: Buffer
    around: tuple[tuple[int, int], ...]
    value: Scalar


def padding_of(shape: Sequence[int], axes: Sequence[Expr], value: Expr) -> Padding | None:
    """Return what a stage of some shape pads; None if it computes anything else.

    Parameters
    ----------
    axes
        Its loops' variables; 0 where an extent is 1.
    value
        What it stores there, in the form of `plain`.
    """
    if not isinstance(value, Select) or not isinstance(value.if_true, Load):
        return None
    inner = value.if_true
    around = _around(shape, inner, axes)
    if around is None or not isinstance(value.if_false, Const):
        return None
    found = Padding(inner.buffer, around, value.if_false.value)
    names: dict[Var, Expr] = {
        axis: Var(f"axis{place}") for place, axis in enumerate(axes) if isinstance(axis, Var)
    }
    return found if _value_of(found) == substitute(value, names) else None


def plain(expr: Expr, extents: Mapping[Var, int]) -> Expr:
    """Return an equal expression whose indices are written in one way: affine forms, 0 for what is always 0."""
    zeros: dict[Var, Expr] = {var: Const(0, DType.INT64) for var, n in extents.items() if n == 1}
    return simplified(substitute(expr, zeros), extents)


def axes_of(loops: Sequence[For]) -> tuple[Expr, ...]:
    """Return the variables of loops; 0 for those that are always 0."""
    return tuple(loop.var if loop.extent > 1 else Const(0, DType.INT64) for loop in loops)


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return an expression with variables replaced."""
    if isinstance(expr, Var):
        return values.get(expr, expr)
    return map_children(expr, lambda child: substitute(child, values))


def _around(
    shape: Sequence[int], inner: Load, axes: Sequence[Expr]
) -> tuple[tuple[int, int], ...] | None:
    """Return how far each dimension reaches beyond the one inside, as far as indices tell."""
    if len(shape) != len(inner.indices):
        return None
    found = []
    pairs = zip(axes, shape, strict=True)
    extents = {axis: size for axis, size in pairs if isinstance(axis, Var)}
    for outer, size, index in zip(shape, inner.buffer.shape, inner.indices, strict=True):
        form = affine(index, extents)
        before = -1 if form is None else -form.constant
        if before < 0 or outer - size - before < 0:
            return None
        found.append((before, outer - size - before))
    return tuple(found)


def _value_of(padding: Padding) -> Expr:
    """Return what `farm.ops.pad` computes, with axes called axis0, axis1 and so on."""
    source = padding.source
    x = te.placeholder(source.shape, source.dtype, name=source.name)
    nest = te.function("padded", [x, ops.pad(x, padding.around, padding.value)]).body
    loops: list[For] = []
    while isinstance(nest, For):
        loops.append(nest)
        nest = nest.body
    assert isinstance(nest, Store)
    value = plain(nest.value, {loop.var: loop.extent for loop in loops})
    return substitute(value, {loop.var: Var(f"axis{i}") for i, loop in enumerate(loops)})
