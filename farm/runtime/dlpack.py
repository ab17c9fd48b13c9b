"""DLTensor in memory, as DLPack 1.0 lays it out, through ctypes.

Owns: the structures and describing arrays with them.
Does not own: the arrays; a `TensorList` keeps them alive as long as it lives.

Invariant: pointers in a `TensorList` stay valid while it is referenced.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar

from farm.artifact.abi import DEVICE_TYPE_CPU, DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farm.runtime.interface import Array


class DLDevice(ctypes.Structure):
    """Where data is."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
    ]


class DLDataType(ctypes.Structure):
    """Element type."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class DLTensor(ctypes.Structure):
    """One array; `strides` NULL means row-major."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


PackedFunction = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(ctypes.POINTER(DLTensor)), ctypes.c_int32
)
"""A compiled function of ABI 1. Calling it releases the interpreter's lock."""


class TensorList:
    """C-contiguous arrays as the arguments of a compiled function."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.count = len(arrays)
        self._arrays = tuple(arrays)
        self._shapes = [
            (ctypes.c_int64 * max(array.ndim, 1))(*array.shape) for array in self._arrays
        ]
        self._tensors = [
            _tensor(array, shape) for array, shape in zip(self._arrays, self._shapes, strict=True)
        ]
        pointers = [ctypes.pointer(tensor) for tensor in self._tensors]
        self.pointers = (ctypes.POINTER(DLTensor) * max(self.count, 1))(*pointers)


def _tensor(array: Array, shape: ctypes.Array[ctypes.c_int64]) -> DLTensor:
    code, bits = DTYPES[array.dtype.name]
    return DLTensor(
        data=array.ctypes.data,
        device=DLDevice(DEVICE_TYPE_CPU, 0),
        ndim=array.ndim,
        dtype=DLDataType(code, bits, 1),
        shape=ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
        strides=None,
        byte_offset=0,
    )
