"""Signatures: what a compiled function takes and gives, and checking arrays against it.

Owns: the canonical JSON form that travels in artifacts and on the wire, and the checks of a call's
arrays. Does not own: the calling convention (`farm.artifact.abi`) or moving data (`farm.runtime`).

Invariant: a `Signature` that exists is valid, and `Signature.from_json(s.to_json()) == s`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from farm.artifact.abi import DTYPES
from farm.core.digest import canonical_json
from farm.core.elements import numpy_dtype
from farm.core.limits import MAX_RANK, MAX_TENSOR_BYTES
from farm.errors import InvalidArguments, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["input", "output", "inout"]
ROLES: tuple[str, ...] = ("input", "output", "inout")

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
MAX_PARAMS = 256
MAX_ALIGN_BYTES = 4096
MAX_JSON_BYTES = 1 << 20

_PARAM_KEYS = {"name", "dtype", "shape", "role", "align_bytes"}


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One parameter: a dense row-major array.

    Parameters
    ----------
    name
        As in the function, ``[A-Za-z_][A-Za-z0-9_]*``.
    dtype
        ``bool``, ``int8`` to ``int64``, ``uint8`` to ``uint64``, ``float16``, ``bfloat16``, ``float32`` or ``float64``.
    shape
        Extents, each >= 1; empty for a scalar.
    role
        ``input`` (read), ``output`` (written) or ``inout`` (both).
    align_bytes
        Alignment of the first element, a power of two up to 4096; 0 stands for the element's size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    align_bytes: int = 0

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidInput(
                f"parameter: malformed name ({self.name[:80]!r}); use a C identifier"
            )
        if self.dtype not in DTYPES:
            raise InvalidInput(
                f"parameter {self.name}: unknown dtype ({self.dtype[:80]!r}); use one of "
                f"{', '.join(DTYPES)}"
            )
        if self.role not in ROLES:
            raise InvalidInput(
                f"parameter {self.name}: unknown role ({self.role[:80]!r}); use {', '.join(ROLES)}"
            )
        align = self.align_bytes
        if align < 0 or align > MAX_ALIGN_BYTES or align & (align - 1):
            raise InvalidInput(
                f"parameter {self.name}: bad alignment ({align}); use a power of two up to "
                f"{MAX_ALIGN_BYTES}, or 0"
            )
        self._check_shape()

    def _check_shape(self) -> None:
        if len(self.shape) > MAX_RANK or any(extent < 1 for extent in self.shape):
            raise InvalidInput(
                f"parameter {self.name}: bad shape ({list(self.shape)[: MAX_RANK + 1]}); use at "
                f"most {MAX_RANK} extents, each >= 1"
            )
        if self.size_bytes > MAX_TENSOR_BYTES:
            raise InvalidInput(
                f"parameter {self.name}: too large ({self.size_bytes} bytes); use at most "
                f"{MAX_TENSOR_BYTES}"
            )

    @property
    def itemsize_bytes(self) -> int:
        """Size of one element in bytes."""
        return DTYPES[self.dtype][1] // 8

    @property
    def size_bytes(self) -> int:
        """Size of the whole array in bytes."""
        return math.prod(self.shape) * self.itemsize_bytes

    @property
    def alignment_bytes(self) -> int:
        """Alignment that code may rely on, in bytes: `align_bytes`, or the element's size."""
        return self.align_bytes or self.itemsize_bytes

    @property
    def is_input(self) -> bool:
        """Whether the caller passes an array for it."""
        return self.role != "output"

    @property
    def is_output(self) -> bool:
        """Whether the caller gets an array for it."""
        return self.role != "input"

    def __str__(self) -> str:
        """Return ``name: dtype[extents]``, as messages show it."""
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a function, in order; names are unique."""

    params: tuple[ParamSpec, ...]

    def __post_init__(self) -> None:
        if len(self.params) > MAX_PARAMS:
            raise InvalidInput(
                f"signature: too many parameters ({len(self.params)}); use at most {MAX_PARAMS}"
            )
        names = [param.name for param in self.params]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidInput(f"signature: name used twice ({', '.join(twice)}); rename one")

    @property
    def inputs(self) -> tuple[ParamSpec, ...]:
        """Parameters that a caller passes arrays for, in order."""
        return tuple(param for param in self.params if param.is_input)

    @property
    def outputs(self) -> tuple[ParamSpec, ...]:
        """Parameters that a caller gets arrays for, in order."""
        return tuple(param for param in self.params if param.is_output)

    def to_json(self) -> bytes:
        """Return the canonical JSON: equal signatures give equal bytes."""
        return canonical_json(self.to_object())

    def to_object(self) -> dict[str, object]:
        """Return plain data for JSON, the inverse of `from_object`."""
        return {
            "params": [
                {
                    "name": param.name,
                    "dtype": param.dtype,
                    "shape": list(param.shape),
                    "role": param.role,
                    "align_bytes": param.align_bytes,
                }
                for param in self.params
            ]
        }

    @staticmethod
    def from_json(data: bytes) -> Signature:
        """Read a signature and check every field.

        Raises
        ------
        InvalidInput
            It is too long, not JSON, or a field is missing, unknown or out of range.
        """
        if len(data) > MAX_JSON_BYTES:
            raise InvalidInput(
                f"signature: too long ({len(data)} bytes); use at most {MAX_JSON_BYTES}"
            )
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                f"signature: not JSON ({error}); pass Signature.to_json()"
            ) from error
        return Signature.from_object(value)

    @staticmethod
    def from_object(value: object) -> Signature:
        """Make a signature of data that `json.loads` gave; raises as `from_json`."""
        if not isinstance(value, dict) or set(value) != {"params"}:
            raise InvalidInput("signature: not an object with params; pass Signature.to_json()")
        params = value["params"]
        if not isinstance(params, list) or len(params) > MAX_PARAMS:
            raise InvalidInput(
                f"signature: params is no list of at most {MAX_PARAMS}; pass Signature.to_json()"
            )
        return Signature(tuple(_param_from_object(param) for param in params))


def _param_from_object(value: object) -> ParamSpec:
    if not isinstance(value, dict) or set(value) != _PARAM_KEYS:
        raise InvalidInput(
            f"signature: a parameter has other keys than {sorted(_PARAM_KEYS)}; pass "
            "Signature.to_json()"
        )
    name, dtype, role = value["name"], value["dtype"], value["role"]
    shape, align_bytes = value["shape"], value["align_bytes"]
    if not all(isinstance(text, str) for text in (name, dtype, role)):
        raise InvalidInput("signature: name, dtype and role are not all text; correct them")
    if not isinstance(shape, list) or not all(type(n) is int for n in (*shape, align_bytes)):
        raise InvalidInput(
            f"signature: shape or align_bytes of {name[:80]!r} is not of integers; correct it"
        )
    return ParamSpec(name, dtype, tuple(shape), cast("Role", role), align_bytes)


def check_inputs(symbol: str, signature: Signature, arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Check a call's arrays: one for each input or inout parameter, of its dtype and shape.

    Nothing is converted: a wrong dtype is an error, not a cast.

    Raises
    ------
    InvalidArguments
        The count, a type, a dtype or a shape is wrong; the message names the argument, and
        ``details`` holds ``argument``, ``has`` and ``needs``.
    """
    specs = signature.inputs
    if len(arrays) != len(specs):
        needs = ", ".join(map(str, specs)) or "nothing"
        raise InvalidArguments(
            f"{symbol}: wrong number of inputs ({len(arrays)}); pass {len(specs)}: {needs}",
            symbol=symbol,
            has=str(len(arrays)),
            needs=str(len(specs)),
        )
    for spec, array in zip(specs, arrays, strict=True):
        _check_array(symbol, spec, array)


def _check_array(symbol: str, spec: ParamSpec, array: object) -> None:
    if not isinstance(array, np.ndarray):
        has = type(array).__name__
    elif array.shape == spec.shape and array.dtype == numpy_dtype(spec.dtype):
        return  # before any text is made: this is what a short call costs
    else:
        has = f"{array.dtype}{list(array.shape)}"
    needs = f"{spec.dtype}{list(spec.shape)}"
    raise InvalidArguments(
        f"{symbol}: argument {spec.name} does not fit (has {has}); pass {needs}",
        symbol=symbol,
        argument=spec.name,
        has=has,
        needs=needs,
    )
