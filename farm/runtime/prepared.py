"""One function with arrays of its own, to be called again and again: what measuring needs of a runtime.

Owns: guarded arrays, filling and poisoning them, seeing what was damaged, and laps of calls. Does not own: how long to
measure, or what is right.

Invariant: a lap holds the calls alone; whatever is put back between them is outside of it.
"""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farm.errors import InvalidInput
from farm.runtime.dlpack import TensorList
from farm.runtime.interface import MIN_ALIGN_BYTES, Array, LoadedFunction, LoadedModule, check_call

if TYPE_CHECKING:
    from farm.artifact.signature import ParamSpec

GUARD_BYTES = 4096
"""Before and after each array."""
GUARD = 0xC3
MAX_CALLED = 10_000


@dataclass(frozen=True, slots=True)
class Lap:
    """Some calls, one after the other.

    Attributes
    ----------
    wall_ns
        How long they took.
    cpu_ns
        CPU time of the calling thread; None if calls run elsewhere.
    """

    wall_ns: int
    cpu_ns: int | None


class Prepared(ABC):
    """A function, ready to be called on what it was filled with.

    Attributes
    ----------
    sets
        Between how many sets of arrays the calls of a lap take turns.
    """

    def __init__(self, function: LoadedFunction, sets: int) -> None:
        self.function, self.sets = function, sets
        self.signature = function.signature

    @abstractmethod
    def fill(self, inputs: Sequence[Array]) -> None:
        """Take new inputs, one for each input or inout; raises InvalidArguments."""

    @abstractmethod
    def poison(self, byte: int) -> None:
        """Fill every output that is no inout with a byte, and put back what inouts held."""

    @abstractmethod
    def lap(self, number: int) -> Lap:
        """Call so many times, at least once; inouts are put back before each call. Raises as `LoadedModule.call`."""

    @abstractmethod
    def outputs(self) -> tuple[Array, ...]:
        """Return what the last call left in outputs and inouts, in order; do not change it."""

    @abstractmethod
    def damage(self) -> str:
        """Say what calls changed that is none of their outputs; empty if nothing."""


class CalledFunction(Prepared):
    """Any runtime's, through `LoadedModule.call`, which times each call where it runs; there is one set of arrays."""

    def __init__(self, module: LoadedModule, function: LoadedFunction) -> None:
        super().__init__(function, 1)
        self._module = module
        self._inputs: list[Array] = []
        self._outputs: tuple[Array, ...] = ()

    def fill(self, inputs: Sequence[Array]) -> None:
        """Take new inputs."""
        check_call(self.function, inputs, 0)
        self._inputs = [np.array(array) for array in inputs]

    def poison(self, byte: int) -> None:
        """Forget outputs: each call has new ones that are poisoned."""
        self._outputs = ()

    def lap(self, number: int) -> Lap:
        """Call so many times, at most 10,000."""
        symbol = self.function.symbol
        result = self._module.call(symbol, self._inputs, repeat=min(number, MAX_CALLED))
        self._outputs = result.outputs
        return Lap(sum(result.samples_ns), None)

    def outputs(self) -> tuple[Array, ...]:
        """Return what the first call of the last lap left."""
        return self._outputs

    def damage(self) -> str:
        """Say nothing: the arrays are in another memory, which holds nothing else."""
        return ""


class GuardedFunction(Prepared):
    """One in this process, on arrays between guards.

    Parameters
    ----------
    address
        Of the compiled function, as `farm.artifact.abi` says.
    repeat
        ``farm_repeat`` of ``repeat.ll``.
    check
        Raises what a return code of a call means.
    """

    def __init__(
        self,
        function: LoadedFunction,
        address: int,
        repeat: Callable[..., int],
        check: Callable[[int], None],
        sets: int,
    ) -> None:
        super().__init__(function, sets)
        self._address, self._repeat, self._check = address, repeat, check
        params = function.signature.params
        self._sets = [[_Guarded(spec) for spec in params] for _ in range(sets)]
        self._lists = [TensorList([it.array for it in arrays]) for arrays in self._sets]
        self._pointers = (ctypes.c_void_p * sets)(
            *(ctypes.cast(it.pointers, ctypes.c_void_p).value for it in self._lists)
        )
        self._inputs: list[Array] = []
        self._has_inout = any(spec.role == "inout" for spec in params)
        self._last = 0

    def fill(self, inputs: Sequence[Array]) -> None:
        """Take new inputs."""
        check_call(self.function, inputs, 0)
        self._inputs = [np.ascontiguousarray(array) for array in inputs]
        for arrays in self._sets:
            for guarded, array in zip(self._taking(arrays), self._inputs, strict=True):
                np.copyto(guarded.array, array)

    def poison(self, byte: int) -> None:
        """Fill outputs with a byte, and put inouts back."""
        for arrays in self._sets:
            for guarded in arrays:
                if not guarded.spec.is_input:
                    guarded.content.fill(byte)
        self._restore()

    def lap(self, number: int) -> Lap:
        """Call so many times."""
        self._last = (number - 1) % self.sets
        if not self._has_inout:
            return self._run(self._pointers, self.sets, number)
        wall_ns = cpu_ns = 0
        for index in range(number):
            one = (ctypes.c_void_p * 1)(self._pointers[index % self.sets])
            self._restore(index % self.sets)
            lap = self._run(one, 1, 1)
            wall_ns, cpu_ns = wall_ns + lap.wall_ns, cpu_ns + (lap.cpu_ns or 0)
        return Lap(wall_ns, cpu_ns)

    def outputs(self) -> tuple[Array, ...]:
        """Return what the last call left."""
        return tuple(it.array for it in self._sets[self._last] if it.spec.is_output)

    def damage(self) -> str:
        """Say which guard or input was changed."""
        for arrays in self._sets:
            for guarded in arrays:
                if where := guarded.overrun():
                    return f"wrote {where} {guarded.spec.name}"
            for guarded, array in zip(self._taking(arrays), self._inputs, strict=True):
                if not guarded.spec.is_output and not _same_bytes(guarded.array, array):
                    return f"changed its input {guarded.spec.name}"
        return ""

    def _run(self, pointers: ctypes.Array[ctypes.c_void_p], sets: int, number: int) -> Lap:
        count = self._lists[0].count
        cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        code = self._repeat(self._address, pointers, sets, count, number)
        wall_ns = time.perf_counter_ns() - wall_ns
        cpu_ns = time.thread_time_ns() - cpu_ns
        self._check(code)
        return Lap(wall_ns, cpu_ns)

    def _restore(self, only: int | None = None) -> None:
        if not self._has_inout:
            return
        for arrays in self._sets if only is None else [self._sets[only]]:
            for guarded, array in zip(self._taking(arrays), self._inputs, strict=True):
                if guarded.spec.is_output:
                    np.copyto(guarded.array, array)

    def _taking(self, arrays: Sequence[_Guarded]) -> list[_Guarded]:
        return [it for it in arrays if it.spec.is_input]


class _Guarded:
    """An array of a parameter between two guards."""

    def __init__(self, spec: ParamSpec) -> None:
        self.spec = spec
        align = max(spec.alignment_bytes, MIN_ALIGN_BYTES)
        self._raw = np.full(spec.size_bytes + 2 * GUARD_BYTES + align, GUARD, np.uint8)
        self._start = GUARD_BYTES + -(self._raw.ctypes.data + GUARD_BYTES) % align
        self._end = self._start + spec.size_bytes
        self.content = self._raw[self._start : self._end]
        self.array = self.content.view(spec.dtype).reshape(spec.shape)

    def overrun(self) -> str:
        """Return ``before`` or ``behind`` if that guard was changed, else nothing."""
        if (self._raw[: self._start] != GUARD).any():
            return "before"
        return "behind" if (self._raw[self._end :] != GUARD).any() else ""


def _same_bytes(one: Array, other: Array) -> bool:
    """Tell whether two arrays of one type, each in one piece, hold the same bytes, without an array of what differs."""
    found: int = _MEMCMP(one.ctypes.data, other.ctypes.data, one.nbytes)
    return found == 0


_MEMCMP = ctypes.CDLL(None).memcmp
_MEMCMP.argtypes, _MEMCMP.restype = (*(ctypes.c_void_p,) * 2, ctypes.c_size_t), ctypes.c_int


def check_sets(sets: int) -> None:
    """Raise InvalidInput unless there can be so many sets of arrays."""
    if not 1 <= sets <= MAX_CALLED:
        raise InvalidInput(f"prepare: {sets} sets of arrays; use 1 to {MAX_CALLED}")
