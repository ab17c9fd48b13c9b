"""Whether numbers are right.

Owns: comparing an output with what the reference says, and the words for what is wrong. Does not own: making either.

Invariant: an array passes only if every row of it does; whatever is not comparable is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from farm.core.elements import is_float

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farm.artifact.signature import Signature

Array = npt.NDArray[Any]

TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-9}
"""Of the largest magnitude in the row."""
LEAST_SCALE = 1e-3
"""A row is never judged by less than so much of the largest magnitude of the whole array."""


def wrong(
    signature: Signature, outputs: Sequence[Array], expected: Sequence[Array], tolerance: float
) -> str:
    """Return what is wrong with outputs; empty if nothing.

    Parameters
    ----------
    expected
        What the reference gave, perhaps in wider types.
    tolerance
        As a part of the largest magnitude of a row; 0: by type.
    """
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs, where the reference has {len(expected)}"
    for spec, found, right in zip(signature.outputs, outputs, expected, strict=True):
        if found.shape != right.shape or is_float(found.dtype) != is_float(right.dtype):
            return f"{spec.name}: {_form(found)}, where the reference has {_form(right)}"
        where = (
            _wrong_float(found, right, tolerance)
            if is_float(found.dtype)
            else _wrong_integer(found, right)
        )
        if where:
            return f"{spec.name}{where}"
    return ""


def _wrong_integer(found: Array, right: Array) -> str:
    unequal = found != right
    if not unequal.any():
        return ""
    return _place(found, right, unequal, int(unequal.sum()))


def _wrong_float(found: Array, right: Array, tolerance: float) -> str:
    if _is_near(found, right, tolerance):
        return ""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = right.astype(found.dtype)
        exact = right.astype(np.float64)
        magnitude = np.where(np.isfinite(rounded), np.abs(exact), 0.0)
        rows = magnitude.reshape(-1, magnitude.shape[-1] if magnitude.ndim else 1)
        row_scale = np.maximum(rows.max(axis=1), LEAST_SCALE * rows.max())
        scale = np.repeat(row_scale, rows.shape[1]).reshape(found.shape)
        limit = (tolerance or TOLERANCE[found.dtype.name]) * scale
        off = np.abs(found.astype(np.float64) - exact)
        fits = off <= limit  # False for whatever is not a number
    odd = ~np.isfinite(rounded)
    if odd.any():
        same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        fits = np.where(odd, same, fits)
    if fits.all():
        return ""
    worst = np.where(fits, -1.0, np.where(np.isfinite(off), off, np.inf))
    return _place(found, right, worst == worst.max(), int((~fits).sum()))


def _is_near(found: Array, right: Array, tolerance: float) -> bool:
    """Tell quickly whether all is right; False also where that takes a closer look."""
    columns = found.shape[-1] if found.ndim else 1
    if not found.size:
        return True
    narrow = found.dtype == right.dtype == np.float32
    found, right = found.reshape(-1, columns), right.reshape(-1, columns)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = _largest(right)
        if not np.isfinite(scale).all():
            return False
        limit = np.maximum(scale, LEAST_SCALE * scale.max()) * (1 - _ROUNDING)
        limit *= tolerance or TOLERANCE[found.dtype.name]
        rows = max(1, AT_ONCE // columns)
        for start in range(0, len(found), rows):
            part = slice(start, start + rows)
            off = np.subtract(found[part], right[part], dtype=np.float32 if narrow else np.float64)
            if not (_largest(off) <= limit[part]).all():
                return False
    return True


AT_ONCE = 1 << 14
"""Numbers; memory that is used again costs nothing, new pages cost more than comparing what they hold."""
_ROUNDING = 1e-6
"""More than a difference of float32 is off by itself."""


def _largest(rows: Array) -> npt.NDArray[np.float64]:
    """Return the largest magnitude of each row, without an array of all magnitudes."""
    most: npt.NDArray[np.float64] = np.maximum(rows.max(axis=1), -rows.min(axis=1)).astype(
        np.float64
    )
    return most


def _place(found: Array, right: Array, which: Array, count: int) -> str:
    index = np.unravel_index(int(np.argmax(which)), which.shape) if which.ndim else ()
    at = f"[{', '.join(str(int(it)) for it in index)}]"
    wrong_ones = f"{count} of {found.size} elements are wrong"
    return f"{at} is {found[index]}, where the reference has {right[index]} ({wrong_ones})"


def _form(array: Array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"
