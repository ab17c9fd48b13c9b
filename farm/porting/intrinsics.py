"""Checks of intrinsics: what the hardware does with their instructions, against their own bodies.

Owns: places, values and the comparison of the whole memory. Does not own: matching layers (`farm.codegen.accelerator`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.accel import Intrinsic, Loaded, Operand, Place, guard
from farm.codegen.accelerator.body import function_of
from farm.errors import FarmError
from farm.ir import as_dtype
from farm.porting.findings import Finding

Array = npt.NDArray[Any]

TRIALS = 12
VALUES = ("random", "extreme", "zero")
ALIGN_BYTES = 64
MOST_APART = 5
"""Rows of an operand lie up to so many of them apart."""


def check_intrinsics(loaded: Loaded, config: str, seed: int) -> Iterator[Finding]:
    """Yield for each intrinsic whether its instructions do what its body says, at random places."""
    for intrinsic in loaded.accelerator.intrinsics:
        subject = f"{intrinsic.name} on {config}"
        try:
            function_of(intrinsic, "body")
            rng = np.random.default_rng(seed)
            kinds = [VALUES[number % len(VALUES)] for number in range(TRIALS)]
            problems = (_trial(loaded, config, intrinsic, kind, rng) for kind in kinds)
            yield Finding("intrinsics", subject, next(filter(None, problems), ""))
        except FarmError as error:
            yield Finding("intrinsics", subject, error.message)


def _trial(
    loaded: Loaded, config: str, intrinsic: Intrinsic, kind: str, rng: np.random.Generator
) -> str:
    """Run one instruction and the body on the same memory; return how the memories differ."""
    places, size = _places(intrinsic, rng)
    memory = rng.integers(0, 256, size, np.uint8)
    for operand in intrinsic.operands:
        view = _view(memory, operand, places[operand.name])
        view[...] = _values(operand, kind, rng)
    wanted = memory.copy()
    with np.errstate(all="ignore"):
        arrays = [_view(wanted, it, places[it.name]) for it in intrinsic.operands]
        guard.call(loaded.who, f"{intrinsic.name}.body", intrinsic.body, *arrays)
    value = loaded.config(config)
    hook = f"{intrinsic.name}.emit"
    code = guard.call(loaded.who, hook, intrinsic.emit, places, value)
    if not isinstance(code, bytes):
        raise guard.nonsense(loaded.who, hook, code, "instructions as bytes")
    execute = loaded.accelerator.execute
    assert execute is not None
    guard.call(loaded.who, "execute", execute, code, memory, value, "")
    if np.array_equal(memory, wanted):
        return ""
    last = intrinsic.operands[-1]
    given, right = (_view(it, last, places[last.name]) for it in (memory, wanted))
    wrong = np.argwhere(given != right)
    if not len(wrong):
        at = int(np.argmax(memory != wanted))
        return f"it changed byte {at}, which is no part of {last.name} ({_shown(places)})"
    first = tuple(map(int, wrong[0]))
    return (
        f"{len(wrong)} of {right.size} wrong for {kind} values; {last.name}{list(first)} is {given[first]}, the body "
        f"gives {right[first]} ({_shown(places)})"
    )


def _places(intrinsic: Intrinsic, rng: np.random.Generator) -> tuple[dict[str, Place], int]:
    """Return places for operands that do not overlap, and the bytes of memory."""
    places, at = {}, int(rng.integers(0, 3)) * ALIGN_BYTES
    for operand in intrinsic.operands:
        size = as_dtype(operand.dtype).size_bytes
        strides = [size]
        for extent in reversed(operand.shape[1:]):
            strides.append(strides[-1] * extent * int(rng.integers(1, MOST_APART)))
        places[operand.name] = Place(at, tuple(reversed(strides)))
        end = at + max(s * n for s, n in zip(reversed(strides), operand.shape, strict=True))
        at = math.ceil(end / ALIGN_BYTES) * ALIGN_BYTES
    return places, at


def _view(memory: Array, operand: Operand, place: Place) -> Array:
    kind = as_dtype(operand.dtype).numpy
    return np.ndarray(operand.shape, kind, memory, place.address, place.strides)


def _values(operand: Operand, kind: str, rng: np.random.Generator) -> Array:
    kind_of = as_dtype(operand.dtype)
    if kind == "zero":
        return np.zeros(operand.shape, kind_of.numpy)
    if kind_of.is_float:
        return rng.standard_normal(operand.shape).astype(kind_of.numpy)
    low, high = int(kind_of.min), int(kind_of.max)
    if kind == "extreme":
        return rng.choice(np.array([low, high], kind_of.numpy), operand.shape)
    return rng.integers(low, high, operand.shape, kind_of.numpy, endpoint=True)


def _shown(places: dict[str, Place]) -> str:
    return ", ".join(f"{name} at {it.address} by {list(it.strides)}" for name, it in places.items())
