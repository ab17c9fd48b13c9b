"""ABI 1: how compiled CPU code is called, as code generators write it and loaders use it.

Owns: names of symbols and sections, DLPack's type codes, and the codes that a function returns.
Does not own: the layout of DLTensor in memory (`farm.runtime.dlpack`, and each code generator's
own).

Invariant: a number or name here never changes its meaning under one `ABI_VERSION`.

Notes
-----
A public function is ``int32_t NAME(const DLTensor *const *args, int32_t num_args)`` with DLTensor
as in DLPack 1.0; arguments are the parameters in order, inputs and outputs alike. It returns 0, or
``kind | (argument_index << 8)``.

An accelerator function is reached through a host stub of that same form. The stub checks its
arguments and calls ``int32_t (*)(void *context, void *const *buffers)``, held in the global
`launch_symbol` and given the global `context_symbol`; the loader writes both. `buffers` are the
data pointers in the order of the parameters.

A function with parallel loops has the global `parallel_symbol`: null, or what the loader stores there, ``int32_t
(*)(void (*share)(void *env, void *scratch, int64_t begin, int64_t end), void *env, int64_t extent, int64_t
scratch_bytes)``. It calls `share` for parts that cover [0, extent) once, on as many threads as it likes, each with
scratch memory of its own aligned to 4096 bytes, and returns 0 when all have returned; or it returns anything else at
once. Then, and where the global is null, the function runs its loops itself, in order.
"""

from __future__ import annotations

import enum

ABI_VERSION = 1

FUNCTIONS_SECTION = "farm_functions"
"""ELF section in which each object has one entry ``{const char *name; function *}``."""

PRIVATE_PREFIX = "__farm_private_"
LAUNCH_PREFIX = "__farm_launch_"
CONTEXT_PREFIX = "__farm_context_"
PARALLEL_PREFIX = "__farm_parallel_"

ALLOWED_IMPORTS = ("memcpy", "memmove", "memset")
"""All that an object may take from outside, other functions of the artifact aside."""

DEVICE_TYPE_CPU = 1
"""DLPack's kDLCPU, the device type of every argument."""

DTYPES: dict[str, tuple[int, int]] = {
    "bool": (6, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float32": (2, 32),
    "float64": (2, 64),
}
"""DLPack (code, bits) of each element type; lanes are always 1."""


class ReturnKind(enum.IntEnum):
    """Low byte of what a function returns."""

    OK = 0
    WRONG_COUNT = 1
    NULL_POINTER = 2
    WRONG_NDIM = 3
    WRONG_DTYPE = 4
    WRONG_SHAPE = 5
    NOT_CONTIGUOUS = 6
    MISALIGNED = 7
    NO_DEVICE = 8
    LAUNCH_FAILED = 9


_RETURN_KINDS = {int(kind): kind for kind in ReturnKind}


def encode_return(kind: ReturnKind, argument_index: int = 0) -> int:
    """Return the code for `kind` at an argument, as compiled code returns it."""
    return int(kind) | (argument_index << 8)


def decode_return(code: int) -> tuple[ReturnKind | None, int]:
    """Split a returned code into kind (None if unknown to ABI 1) and argument index."""
    low, index = code & 0xFF, (code >> 8) & 0xFFFFFF
    return _RETURN_KINDS.get(low), index


def private_symbol(name: str, target_id: str) -> str:
    """Return the linker symbol of a target's private helper `name`; helpers of two targets never meet."""
    return f"{PRIVATE_PREFIX}{target_id}_{name}"


def launch_symbol(name: str) -> str:
    """Return the global in which the loader stores the launcher of accelerator function `name`."""
    return LAUNCH_PREFIX + name


def context_symbol(name: str) -> str:
    """Return the global whose value the host stub of `name` passes to its launcher."""
    return CONTEXT_PREFIX + name


def parallel_symbol(symbol: str) -> str:
    """Return the global in which the loader stores what shares out the parallel loops of function `symbol`."""
    return PARALLEL_PREFIX + symbol


def is_public(symbol: str) -> bool:
    """Tell whether users may call `symbol`; two leading underscores are the project's own."""
    return not symbol.startswith("__")
