"""Launching an accelerator's program from the host stub that compiled code calls.

Owns: the callback behind ``__farm_launch_NAME``, carrying its exception over compiled code, and the choice of a
program by its section's target and format. Does not own: the machines (`farm.runtime.plugin`, `farm.runtime.opencl`) or
the stub (compiled with the artifact).

Invariant: no exception crosses compiled code; one that a launch raised is given out once, by
`take_error`, whatever the code in between made of the return value.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from farm.artifact.module import OPENCL_SOURCE, Section
from farm.core.elements import numpy_dtype
from farm.errors import ArtifactError
from farm.runtime.plugin import PlugInProgram
from farm.target import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farm.artifact.signature import ParamSpec, Signature
    from farm.runtime.interface import Array

LaunchFunction = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
"""``int32_t (*)(void *context, void *const *buffers)``; it releases no lock, Python runs in it."""


class Program(Protocol):
    """What a launcher runs."""

    def run(self, arrays: Sequence[Array]) -> int | None:
        """Run once on the parameters' arrays, in order; return its cycles if they are counted. Raises its error."""
        ...


class Launcher:
    """Makes a program callable from compiled code.

    Attributes
    ----------
    cycles
        Of all launches so far; None as long as none counted any.
    """

    def __init__(self, program: Program, signature: Signature) -> None:
        self._program = program
        self._params = signature.params
        self.cycles: int | None = None
        self._error: BaseException | None = None
        self._callback = LaunchFunction(self._launch)

    @property
    def address(self) -> int:
        """Address of the C function that launches; valid while this object lives."""
        return ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def take_error(self) -> BaseException | None:
        """Return what the last launch raised, once."""
        error, self._error = self._error, None
        return error

    def _launch(self, _context: int | None, buffers: Any) -> int:  # noqa: ANN401 - a ctypes pointer
        try:
            arrays = [_array_at(buffers[index], spec) for index, spec in enumerate(self._params)]
            cycles = self._program.run(arrays)
            if cycles is not None:
                self.cycles = (self.cycles or 0) + cycles
        except BaseException as error:  # noqa: BLE001 - compiled code cannot carry it
            self._error = self._error or error
            return 1
        return 0


def make_launcher(section: Section, signature: Signature, device: str = "") -> Launcher:
    """Return the launcher for an accelerator's section.

    Parameters
    ----------
    device
        Which of several devices of its kind, as its driver names them.

    Raises
    ------
    ArtifactError
        Its format is unknown here.
    InvalidTarget
        Its accelerator is not installed here.
    InvalidProgram
        Its bytes are no program of its machine.
    BuildFailed
        The device's own compiler refuses it, or the accelerator's package failed.
    """
    if (section.format, section.format_version) == (OPENCL_SOURCE, 1):
        from farm.runtime.opencl import OpenclProgram  # loads the platform's libraries

        return Launcher(OpenclProgram(section, signature, device), signature)
    if Target.parse(section.target, foreign=True).kind == "opencl":
        raise ArtifactError(
            f"{section}: cannot launch format {section.format} version {section.format_version}; update "
            "kernel-farm or build it again"
        )
    return Launcher(PlugInProgram(section, signature, device), signature)


def _array_at(address: int, spec: ParamSpec) -> Array:
    raw = (ctypes.c_uint8 * spec.size_bytes).from_address(address)
    return np.frombuffer(memoryview(raw), dtype=numpy_dtype(spec.dtype)).reshape(spec.shape)
