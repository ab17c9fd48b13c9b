"""What is reduced: products and pools over windows of images, from the indices of their loads.

Owns: telling windows, taps, channels and groups from indices, and saying why there are none.
Does not own: finding the loads (`lift`).

Invariant: a `Product` or `Pool` stands for exactly what its loops compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.codegen.ea.geometry import Axis, Window
from farm.codegen.padding import Padding
from farm.ea.isa import VecOp
from farm.ea.timing import VEC_START_CYCLES
from farm.ir import Buffer
from farm.ir.affine import Affine, affine, constant
from farm.ir.expr import Expr, Load, Var

MAX_STRIDE = 15  # rows from one operand to the next, 4 bits


class NoReductionError(Exception):
    """It is none that the machine has; the text says why."""


@dataclass(frozen=True, slots=True)
class Product:
    """Sums of int8 products over the channels of windows, in int32, on the matrix engine.

    Attributes
    ----------
    result
        The buffer that the function's text stores it in.
    depth
        Channels that are summed up.
    group_columns
        Neighbouring outputs that are of the same channels; the next so many are of the `depth` channels after them.
    channels
        Of the source, those of all groups.
    tap_strides, depth_stride
        Elements of `w` from one tap down, or to the right, to the next, and from one channel to the next; outputs lie
        side by side.
    """

    x: Buffer
    w: Buffer
    result: Buffer
    window: Window
    depth: int
    group_columns: int
    channels: int
    tap_strides: tuple[int, int]
    depth_stride: int


@dataclass(frozen=True, slots=True)
class Pool:
    """The sum or the largest of each channel of windows of int8, on the vector engine.

    Attributes
    ----------
    w
        What each tap is multiplied with first: a depthwise convolution.
    op
        ADD, MAX or MIN.
    fill
        What stands around the source.
    """

    x: Buffer
    w: Buffer | None
    result: Buffer
    window: Window
    op: VecOp
    fill: int
    channels: int
    tap_strides: tuple[int, int]

    @property
    def neutral(self) -> int:
        """Return the value that changes no result."""
        return {VecOp.ADD: 0, VecOp.MAX: -128}.get(self.op, 127)

    def goes_by_pixels(
        self, window: Window, lines: int, pixels: int, height: int, times: int
    ) -> bool:
        """Tell whether windows are pooled faster one by one than tap by tap, in so many instructions for each."""
        if self.w is not None or window.right.dilation > MAX_STRIDE:
            return False
        each = lines * pixels * window.down.kernel * (VEC_START_CYCLES + window.right.kernel)
        return each + height < window.taps * (times * VEC_START_CYCLES + height)


Reduction = Product | Pool


@dataclass(frozen=True, slots=True)
class Loops:
    """Loops of a reduction: variables of the result's axes, 0 for what is always 0, and of what is reduced."""

    axes: tuple[Expr, ...]
    reduced: tuple[Var, ...]
    extents: Mapping[Var, int]


def product_of(
    loops: Loops,
    result: Buffer,
    x: Load,
    padding: Padding | None,
    w: Load,
    around: Padding | None = None,
) -> Reduction:
    """Return the sum of products of two loads, `x` being the one whose rows are pixels.

    Raises
    ------
    NoReductionError
        The indices are no such product's.
    """
    if around is not None:
        raise NoReductionError(f"its weights {around.source.name} have a value around them")
    source = x.buffer if padding is None else padding.source
    form, column = _flat(loops, w), loops.axes[-1]
    if isinstance(column, Var) and all(digit.var != column for digit, _ in form.terms):
        raise NoReductionError(
            f"the innermost axis of the result is not the outputs of {w.buffer.name} (use NHWC, or A[i, k] * W[k, j])"
        )
    window, taps = _window(loops, x, padding)
    depth, together, depthwise = _channels(loops, x, taps, result.shape[-1])
    strides = {digit.var: k for digit, k in form.terms if digit.is_top and digit.lower == 1}
    if len(strides) < len(form.terms) or form.constant:
        raise NoReductionError(f"{w.buffer.name} is not read by taps, channels and outputs")
    if isinstance(column, Var) and strides.pop(column, 0) != 1:
        raise NoReductionError(
            f"the outputs of its weights {w.buffer.name} do not lie side by side (use A[i, k] * W[k, j], or NHWC)"
        )
    tap_strides = (_stride(strides, taps[0]), _stride(strides, taps[1]))
    inner = [var for var in loops.reduced if var not in taps]
    depth_stride = _stride(strides, inner[0] if inner else None)
    if strides:
        raise NoReductionError(f"{w.buffer.name} is indexed by {next(iter(strides)).name} too")
    fill = 0 if padding is None else int(padding.value)
    if depthwise:
        return Pool(
            source, w.buffer, result, window, VecOp.ADD, fill, source.shape[-1], tap_strides
        )
    if fill:
        raise NoReductionError(f"there is {fill} around {source.name}, not 0")
    return Product(
        source,
        w.buffer,
        result,
        window,
        depth,
        together,
        source.shape[-1],
        tap_strides,
        depth_stride,
    )


def pool_of(loops: Loops, result: Buffer, x: Load, padding: Padding | None, op: VecOp) -> Pool:
    """Return the pool of a load; raises NoReductionError as `product_of`."""
    source = x.buffer if padding is None else padding.source
    form, column = _index(loops, x, -1), loops.axes[-1]
    own = [(digit.var, digit.lower, k) for digit, k in form.terms]
    if own and all(digit.var in loops.reduced for digit, _ in form.terms):
        raise NoReductionError("no instruction reduces across the lanes of a row and masks some")
    if own != ([(column, 1, 1)] if isinstance(column, Var) else []) or form.constant:
        raise NoReductionError(
            f"the innermost axis of {source.name} is not its channels (use NHWC)"
        )
    window, taps = _window(loops, x, padding)
    if left := [var for var in loops.reduced if var not in taps]:
        raise NoReductionError(f"it is reduced over {left[0].name}, which does not slide")
    fill = 0 if padding is None else int(padding.value)
    return Pool(source, None, result, window, op, fill, source.shape[-1], (0, 0))


def _stride(strides: dict[Var, int], var: Var | None) -> int:
    return 0 if var is None else strides.pop(var, 0)


def _index(loops: Loops, load: Load, dimension: int) -> Affine:
    form = affine(load.indices[dimension], loops.extents)
    if form is None:
        raise NoReductionError(f"an index of {load.buffer.name} is no sum of loop variables")
    return form


def _flat(loops: Loops, load: Load) -> Affine:
    """Return which element a load reads, counted in its buffer."""
    total = constant(0)
    for dimension, size in enumerate(load.buffer.shape):
        total = total.scaled(size) + _index(loops, load, dimension)
    return total


def _channels(
    loops: Loops, x: Load, taps: tuple[Var | None, Var | None], outputs: int
) -> tuple[int, int, bool]:
    """Return the channels of an output, how many outputs have the same, and whether each has one of its own."""
    name = x.buffer.name
    form = _index(loops, x, -1)
    column = loops.axes[-1]
    inner = [var for var in loops.reduced if var not in taps]
    if len(inner) > 1:
        raise NoReductionError(
            f"it is summed up over {inner[0].name} and {inner[1].name}, not windows"
        )
    depth = loops.extents[inner[0]] if inner else 1
    left = [(digit, k) for digit, k in form.terms if digit.var not in inner]
    own = [k for digit, k in form.terms if digit.var in inner and digit.lower == 1 and digit.is_top]
    if form.constant or len(own) + len(left) < len(form.terms) or own != [1] * len(inner):
        raise NoReductionError(f"the innermost axis of {name} is not its channels (use NHWC)")
    if not left:
        return depth, outputs, False
    (digit, k), *more = left
    if more or digit.var != column or not digit.is_top or k != depth:
        raise NoReductionError(f"the innermost axis of {name} is not its channels (use NHWC)")
    return depth, digit.lower, digit.lower == depth == 1


def _window(
    loops: Loops, x: Load, padding: Padding | None
) -> tuple[Window, tuple[Var | None, Var | None]]:
    """Return what slides over all axes but the last, and the variables of its taps down and to the right."""
    found: list[tuple[Axis, Var | None]] = []
    outer = [axis for axis in loops.axes[:-1] if isinstance(axis, Var)]
    seen: list[Var] = []
    for dimension, extent in enumerate(x.buffer.shape[:-1]):
        size, before = extent, 0
        if padding is not None:
            size, before = padding.source.shape[dimension], padding.around[dimension][0]
        form = _index(loops, x, dimension)
        place, tap, steps = _slides(loops, x, form, outer)
        if place is not None:
            seen.append(place)
        axis = Axis.of(
            size,
            1 if place is None else loops.extents[place],
            1 if tap is None else loops.extents[tap],
            1 if place is None else steps[place],
            1 if tap is None else steps[tap],
            before - form.constant,
        )
        if axis.stride > MAX_STRIDE:
            raise NoReductionError(
                f"its windows are {axis.stride} pixels apart, more than {MAX_STRIDE}"
            )
        found.append((axis, tap))
    if padding is not None and any(padding.around[-1]):
        raise NoReductionError(
            f"there is something around the innermost axis of {padding.source.name}, which is not its channels then "
            "(use NHWC)"
        )
    if seen != outer:
        raise NoReductionError(f"{x.buffer.name} is not read in the order of the result's axes")
    return _two(found)


def _slides(
    loops: Loops, x: Load, form: Affine, outer: Sequence[Var]
) -> tuple[Var | None, Var | None, dict[Var, int]]:
    """Return the variables of an index that are the result's and the taps', and the steps of both."""
    place: Var | None = None
    tap: Var | None = None
    steps: dict[Var, int] = {}
    for digit, k in form.terms:
        if digit.lower != 1 or not digit.is_top or k < 1 or digit.var in steps:
            raise NoReductionError(f"{x.buffer.name} is not read by windows")
        steps[digit.var] = k
        if digit.var in outer and place is None:
            place = digit.var
        elif digit.var in loops.reduced and tap is None:
            tap = digit.var
        else:
            raise NoReductionError(_unlike(x, digit.var, loops))
    return place, tap, steps


def _unlike(x: Load, var: Var, loops: Loops) -> str:
    if var == loops.axes[-1]:
        return f"the innermost axis of {x.buffer.name} is not its channels (use A[i, k] * W[k, j], or NHWC)"
    return f"{x.buffer.name} is not read by windows"


def _two(
    found: Sequence[tuple[Axis, Var | None]],
) -> tuple[Window, tuple[Var | None, Var | None]]:
    """Return a window of two axes: neighbours on which nothing slides become one."""
    axes: list[tuple[Axis, Var | None]] = []
    for axis, tap in found:
        if axes and axis.is_plain and axes[-1][0].is_plain:
            size = axes.pop()[0].size * axis.size
            axes.append((Axis(size, size), None))
        else:
            axes.append((axis, tap))
    axes = [each for each in axes if each[0] != Axis(1, 1)]
    single: tuple[Axis, Var | None] = (Axis(1, 1), None)
    axes = [single] * (2 - len(axes)) + axes
    *outer, (down, tap_down), (right, tap_right) = axes
    if len(outer) > 1 or any(not axis.is_plain for axis, _ in outer):
        raise NoReductionError("windows slide over more than two axes")
    images = outer[0][0].size if outer else 1
    return Window(images, down, right), (tap_down, tap_right)
