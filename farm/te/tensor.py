"""Tensors, axes, and the two expression nodes that exist only before lowering: reads and reductions.

Owns: declaring tensors, and refusing bodies that lowering could not take. Does not own: lowering (`lower`).

Invariant: a tensor that exists has a legal name, shape and alignment, and a body within the IR's limits.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from farm.errors import InvalidFunction
from farm.ir.buffer import MAX_RANK, Buffer, check_name
from farm.ir.dtype import DType, as_dtype
from farm.ir.expr import Const, Expr, const
from farm.ir.stmt import Span
from farm.ir.verifier import MAX_DEPTH, MAX_NODES

_counter = itertools.count()
_HERE = __name__.rpartition(".")[0] + "."


@dataclass(frozen=True, slots=True, eq=False)
class Axis(Expr):
    """A loop ``[0, extent)`` and the value of its variable; becomes a loop with a unique name."""

    name: str
    extent: int

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """int64, always."""
        return DType.INT64


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """An array in an expression: an input (`placeholder`) or a computed one (`compute`).

    ``tensor[i, j]`` is an element; indices are expressions or Python integers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    align_bytes: int
    axes: tuple[Axis, ...] = ()
    body: Expr | None = None
    span: Span | None = field(default=None, repr=False)

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Expr:
        given = indices if isinstance(indices, tuple) else (indices,)
        if len(given) != len(self.shape):
            raise InvalidFunction(
                f"tensor {self.name}: {len(given)} indices; it has rank {len(self.shape)}"
            )
        return Read(self, tuple(map(_index, given)))

    def buffer(self, name: str) -> Buffer:
        """Return the buffer that holds this tensor, under a name."""
        return Buffer(name, self.dtype, self.shape, self.align_bytes)


@dataclass(frozen=True, slots=True)
class Read(Expr):
    """An element of a tensor; becomes a load."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """The tensor's element type."""
        return self.tensor.dtype

    def children(self) -> tuple[Expr, ...]:
        """Return the indices."""
        return self.indices


class Reducer(enum.Enum):
    """How a reduction combines values."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """A reduction over axes; only as the whole body of a compute."""

    reducer: Reducer
    value: Expr
    axes: tuple[Axis, ...]

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """The value's type: nothing is widened silently."""
        return self.value.dtype

    def children(self) -> tuple[Expr, ...]:
        """Return the value."""
        return (self.value,)

    def identity(self) -> Const:
        """Return the value that a reduction starts from."""
        if self.reducer is Reducer.SUM:
            return const(0, self.dtype)
        if self.dtype.is_float:
            return Const(float("-inf" if self.reducer is Reducer.MAX else "inf"), self.dtype)
        return const(self.dtype.min if self.reducer is Reducer.MAX else self.dtype.max, self.dtype)


def placeholder(
    shape: Sequence[int],
    dtype: str | DType = "float32",
    name: str | None = None,
    *,
    align_bytes: int | None = None,
) -> Tensor:
    """Declare an input tensor.

    Parameters
    ----------
    align_bytes
        Alignment that callers must provide, a power of two; None means the element's size.

    Raises
    ------
    InvalidFunction
        The name, type, shape or alignment is impossible.
    """
    return _tensor(name or f"input{next(_counter)}", shape, as_dtype(dtype), align_bytes)


def reduce_axis(extent: int, name: str = "k") -> Axis:
    """Declare an axis ``[0, extent)`` to reduce over."""
    return _axis(name, extent)


def compute(
    shape: Sequence[int],
    body: Callable[..., Expr],
    name: str | None = None,
    *,
    align_bytes: int | None = None,
) -> Tensor:
    """Define a tensor element by element.

    Parameters
    ----------
    body
        Called once with one loop variable for each axis; returns the element as an expression. A reduction
        (`sum`, `max`, `min`) may only be the whole of it.

    Raises
    ------
    InvalidFunction
        The body takes another number of indices, returns no expression, is too large, has a reduction inside it, or
        reduces over one of the tensor's own axes.
    """
    name = name or f"compute{next(_counter)}"
    axes = tuple(map(_axis, _names(name, body, len(shape)), shape))
    value = body(*axes)
    if not isinstance(value, Expr):
        raise InvalidFunction(
            f"compute {name}: the body gives {value!r}; return an expression (te.const)"
        )
    _check_body(name, value)
    if isinstance(value, Reduce) and (both := [a.name for a in value.axes if a in axes]):
        raise InvalidFunction(
            f"compute {name}: reduces over its own axis {both[0]}; use a te.reduce_axis"
        )
    return _tensor(name, shape, value.dtype, align_bytes, axes, value)


def _tensor(
    name: str,
    shape: Sequence[int],
    dtype: DType,
    align_bytes: int | None,
    axes: tuple[Axis, ...] = (),
    body: Expr | None = None,
) -> Tensor:
    align = dtype.size_bytes if align_bytes is None else align_bytes
    tensor = Tensor(name, tuple(shape), dtype, align, axes, body, caller_span())
    tensor.buffer(name)  # checks name, shape and alignment
    return tensor


def _check_body(name: str, body: Expr) -> None:
    """Refuse what later steps, which walk the body by recursion, could not take."""
    pending, nodes = [(body, 0)], 0
    while pending:
        expr, depth = pending.pop()
        nodes += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise InvalidFunction(
                f"compute {name}: too large (over {MAX_NODES} nodes or nested over {MAX_DEPTH} deep); "
                f"split it into several computes"
            )
        if depth and isinstance(expr, Reduce):
            raise InvalidFunction(
                f"compute {name}: a reduction inside an expression; give it its own compute"
            )
        pending.extend((child, depth + 1) for child in expr.children())


def _axis(name: str, extent: int) -> Axis:
    check_name("axis", name)
    if extent < 1:
        raise InvalidFunction(f"axis {name}: extent {extent}; use at least 1")
    return Axis(name, extent)


def _names(name: str, body: Callable[..., Expr], rank: int) -> list[str]:
    if rank > MAX_RANK:
        raise InvalidFunction(f"compute {name}: rank {rank}; use at most {MAX_RANK}")
    parameters = inspect.signature(body).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return [f"i{axis}" for axis in range(rank)]
    names = [p.name for p in parameters if p.default is p.empty]
    if len(names) != rank:
        raise InvalidFunction(
            f"compute {name}: the body takes {len(names)} indices; the shape has {rank}"
        )
    plain = [axis.lstrip("_") for axis in names]  # _ and _1 are no good names for loops
    return [f"i{i}" if not axis or axis[0].isdigit() else axis for i, axis in enumerate(plain)]


def _index(value: Expr | int) -> Expr:
    if not isinstance(value, Expr):
        return const(value, DType.INT64)
    if not value.dtype.is_integer:
        raise InvalidFunction(f"index: {value.dtype}; use an integer")
    return value.astype(DType.INT64)


def caller_span() -> Span | None:
    """Return the first place up the stack outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(_HERE):
        frame = frame.f_back
    return Span(frame.f_code.co_filename, frame.f_lineno)
