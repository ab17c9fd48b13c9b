"""What every device runtime offers: load an artifact, call its functions, time them.

Owns: the types that callers see, and the checks and buffers that all runtimes share.
Does not own: any one way of running code (`farm.runtime.native`, `farm.runtime.qemu`).

Invariant: a kernel sees only checked arguments in buffers of the right size and alignment, and
never writes into a caller's array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from farm.artifact.abi import ReturnKind, decode_return
from farm.artifact.signature import ParamSpec, Signature, check_inputs
from farm.core.elements import numpy_dtype
from farm.core.limits import MAX_REPEAT
from farm.errors import (
    FarmError,
    InfrastructureError,
    InvalidArguments,
    InvalidInput,
    KernelFailed,
    NotFound,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from farm.artifact.artifact import Artifact
    from farm.artifact.choice import Choice
    from farm.runtime.prepared import Prepared

Array = npt.NDArray[Any]

MIN_ALIGN_BYTES = 64
POISON = 0xA5
"""Fills outputs before the first call, so that an element that is never written shows."""


@dataclass(frozen=True, slots=True)
class LoadedFunction:
    """One function that can be called; `target` is the canonical text of the slice chosen."""

    symbol: str
    target: str
    signature: Signature


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a call gave.

    Parameters
    ----------
    outputs
        One array for each output or inout parameter, in order, as the first call left it.
    samples_ns
        Time of each repeated call, in the order taken.
    """

    outputs: tuple[Array, ...]
    samples_ns: tuple[int, ...]


class ShortCall:
    """One function, to be called again and again from one piece of bytes into another.

    This one works with every module; what a module makes of it may be faster.

    Attributes
    ----------
    input_bytes, output_bytes
        Size of the content of all inputs and inouts, and of all outputs and inouts.
    """

    def __init__(self, module: LoadedModule, function: LoadedFunction) -> None:
        self._module = module
        self._symbol = function.symbol
        self._inputs = function.signature.inputs
        self.input_bytes = sum(spec.size_bytes for spec in function.signature.inputs)
        self.output_bytes = sum(spec.size_bytes for spec in function.signature.outputs)

    def __call__(self, inputs: memoryview, start: int, outputs: memoryview, end: int) -> None:
        """Call once.

        Parameters
        ----------
        inputs
            Holds `input_bytes` from `start` on: the content of each input and inout, in order, without gaps.
        outputs
            Takes `output_bytes` from `end` on, in the same way; stays as it is if the call fails.

        Raises
        ------
        FarmError
            As `LoadedModule.call`.
        """
        arrays = []
        for spec in self._inputs:
            content = inputs[start : start + spec.size_bytes]
            arrays.append(np.frombuffer(content, numpy_dtype(spec.dtype)).reshape(spec.shape))
            start += spec.size_bytes
        for array in self._module.call(self._symbol, arrays).outputs:
            outputs[end : end + array.nbytes] = array.tobytes()
            end += array.nbytes


class LoadedModule(ABC):
    """An artifact's functions, ready on one device. Close it, or use it in ``with``."""

    def __init__(self, choices: Mapping[str, Choice]) -> None:
        self.functions: Mapping[str, LoadedFunction] = {
            symbol: LoadedFunction(symbol, choice.section.target, choice.signature)
            for symbol, choice in choices.items()
        }

    @abstractmethod
    def call(self, symbol: str, inputs: Sequence[Array], repeat: int = 0) -> CallResult:
        """Call a function once for its outputs, then `repeat` times for its time.

        Contents of inout parameters are put back before each timed call.

        Parameters
        ----------
        inputs
            One array for each input or inout parameter, in order; see `check_inputs`. They are not
            changed.
        repeat
            0 to 10,000.

        Raises
        ------
        InvalidArguments
            An array does not fit; the message names the argument.
        NotFound
            There is no such function.
        KernelFailed
            The kernel failed; `KernelCrashed` and `DeviceFault` say how.
        """

    def short_call(self, symbol: str) -> ShortCall:
        """Return a way to call a function with little work around it; raises NotFound."""
        return ShortCall(self, self.function(symbol))

    def prepare(self, symbol: str, sets: int = 1) -> Prepared:
        """Return a function with arrays of its own, to be filled and then called again and again; raises NotFound.

        Parameters
        ----------
        sets
            Between how many sets of arrays calls take turns, where the runtime can.
        """
        from farm.runtime.prepared import CalledFunction

        return CalledFunction(self, self.function(symbol))

    def cycles(self) -> int | None:
        """Return the cycles that accelerators have counted so far; None if nothing of this module counts any."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Unload the code; closing again does nothing."""

    def function(self, symbol: str) -> LoadedFunction:
        """Return a function by its name; raises NotFound and lists what there is."""
        found = self.functions.get(symbol)
        if found is None:
            known = ", ".join(sorted(self.functions)) or "nothing"
            raise NotFound(
                f"{symbol[:80]}: no such function, or no slice of it runs on this device; there is {known}"
            )
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Loader(Protocol):
    """Makes modules for one kind of device."""

    def load(self, artifact: Artifact) -> LoadedModule:
        """Choose what this device runs of an artifact, link it and make it callable.

        Raises
        ------
        NoVariant, HostMismatch
            A function has no slice for this device.
        UndefinedReference
            Code refers to a symbol that nothing provides.
        ArtifactError
            The linker refuses the code.
        """
        ...


def check_call(function: LoadedFunction, inputs: Sequence[Array], repeat: int) -> None:
    """Check what a caller passed to `LoadedModule.call`."""
    if not 0 <= repeat <= MAX_REPEAT:
        raise InvalidInput(f"{function.symbol}: bad repeat count ({repeat}); use 0 to {MAX_REPEAT}")
    check_inputs(function.symbol, function.signature, inputs)


def aligned_empty(spec: ParamSpec) -> Array:
    """Return a new array for a parameter, aligned to 64 bytes or more, its content undefined."""
    align = max(spec.alignment_bytes, MIN_ALIGN_BYTES)
    raw = np.empty(spec.size_bytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + spec.size_bytes].view(numpy_dtype(spec.dtype)).reshape(spec.shape)


def poisoned(spec: ParamSpec) -> Array:
    """Return a new aligned array for an output, every byte 0xA5."""
    array = aligned_empty(spec)
    array.reshape(-1).view(np.uint8).fill(POISON)
    return array


def usable_input(spec: ParamSpec, array: Array) -> Array:
    """Return `array` itself if a kernel can read it as it is, else an aligned contiguous copy."""
    if array.flags.c_contiguous and array.ctypes.data % spec.alignment_bytes == 0:
        return array
    return fresh_copy(spec, array)


def fresh_copy(spec: ParamSpec, array: Array) -> Array:
    """Return an aligned contiguous copy."""
    copy = aligned_empty(spec)
    np.copyto(copy, array)
    return copy


def return_error(symbol: str, signature: Signature, code: int) -> FarmError | None:
    """Return the error that a function's return code stands for, None for success."""
    if code == 0:
        return None
    kind, index = decode_return(code)
    params = signature.params
    argument = params[index].name if index < len(params) else f"#{index}"
    match kind:
        case None | ReturnKind.OK:
            return KernelFailed(f"{symbol}: unknown return code ({code:#x}); build it again")
        case ReturnKind.NO_DEVICE:
            return InfrastructureError(
                f"{symbol}: its accelerator has no launcher here; load it on a device that has one"
            )
        case ReturnKind.LAUNCH_FAILED:
            return KernelFailed(f"{symbol}: the accelerator failed to run it; look at the device")
        case ReturnKind.WRONG_COUNT:
            return InvalidArguments(
                f"{symbol}: compiled code refused the number of arguments; pass {len(params)}",
                symbol=symbol,
                reason=kind.name,
            )
        case _:
            needs = str(params[index]) if index < len(params) else "what its signature says"
            return InvalidArguments(
                f"{symbol}: compiled code refused argument {argument} ({kind.name}); pass {needs}",
                symbol=symbol,
                argument=argument,
                reason=kind.name,
            )
