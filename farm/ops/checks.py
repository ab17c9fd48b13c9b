"""What operators check of their operands.

Owns: messages that name the operator and what does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from farm.errors import InvalidFunction
from farm.ir.dtype import DType
from farm.te import Tensor

LAYOUTS = ("NCHW", "NHWC")
"""Orders of the axes of images."""


def refuse(operator: str, problem: str) -> InvalidFunction:
    """Make the error of an operator."""
    return InvalidFunction(f"{operator}: {problem}")


def rank(operator: str, tensor: Tensor, *allowed: int) -> None:
    """Refuse a tensor of another rank."""
    if len(tensor.shape) not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise refuse(operator, f"{tensor.name} has shape {tensor.shape}; its rank must be {wanted}")


def same_type(operator: str, a: Tensor, b: Tensor) -> None:
    """Refuse operands of two types."""
    if a.dtype is not b.dtype:
        raise refuse(operator, f"{a.name} is {a.dtype}, {b.name} is {b.dtype}; use one type")


def floats(operator: str, *tensors: Tensor) -> None:
    """Refuse tensors that hold no floats."""
    for tensor in tensors:
        if not tensor.dtype.is_float:
            raise refuse(operator, f"{tensor.name} is {tensor.dtype}; use a float type")


def positive(operator: str, what: str, *values: int) -> None:
    """Refuse numbers below 1."""
    if any(isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in values):
        raise refuse(operator, f"{what} {values}; use integers from 1 up")


def pair(operator: str, what: str, value: int | Sequence[int]) -> tuple[int, int]:
    """Return a number for each of two axes."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2:
        raise refuse(operator, f"{what} {value!r}; use one number, or one for each axis")
    return both[0], both[1]


def axis_of(operator: str, tensor: Tensor, axis: int) -> int:
    """Return an axis counted from the front."""
    count = len(tensor.shape)
    if not -count <= axis < count:
        raise refuse(operator, f"axis {axis}; {tensor.name} has shape {tensor.shape}")
    return axis % count


def accumulator(dtype: DType) -> DType:
    """Return the type of sums of products: int32 of narrower integers, float32 of floats of 16 bits."""
    return DType.INT32 if dtype.is_integer and dtype.bits < 32 else computed_in(dtype)


def computed_in(dtype: DType) -> DType:
    """Return the type in which functions of a type are computed: float32 for floats of 16 bits, else the same."""
    return DType.FLOAT32 if dtype.is_half else dtype


def padded_extent(
    operator: str, size: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int
) -> int:
    """Return how many places a window has."""
    reach = dilation * (kernel - 1) + 1
    room = size + sum(padding) - reach
    if room < 0:
        raise refuse(
            operator, f"a window of {reach} does not fit into {size} with padding {padding}"
        )
    return room // stride + 1
