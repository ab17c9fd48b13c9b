"""Launching an accelerator's program from the host stub that compiled code calls.

Owns: the callback behind ``__farm_launch_NAME``, carrying its exception over compiled code, and the choice of a
program by its section's format. Does not own: the machines (`farm.ea`, `farm.runtime.opencl`) or the stub (compiled
with the artifact).

Invariant: no exception crosses compiled code; one that a launch raised is given out once, by
`take_error`, whatever the code in between made of the return value.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from farm.artifact.module import EA_PROGRAM, OPENCL_SOURCE, Section
from farm.ea.config import find_config
from farm.errors import ArtifactError
from farm.runtime.ea.machine import CompiledMachine
from farm.runtime.ea.program import LoadedProgram
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


class EaProgram:
    """A program on an emulated machine of its own.

    A fault stops that machine, as it would a real one; the next launch resets it first.
    """

    def __init__(self, section: Section) -> None:
        config = find_config(Target.parse(section.target).option("config") or "")
        self._program = LoadedProgram(section.data, config)
        self._machine = CompiledMachine(config)

    def run(self, arrays: Sequence[Array]) -> int:
        """Run once and return its cycles; raises DeviceFault."""
        if self._machine.fault is not None:
            self._machine.reset()
        self._machine.run(self._program, arrays)
        return self._cycles

    @functools.cached_property
    def _cycles(self) -> int:
        """Of every run: they depend on no data."""
        return self._machine.time(self._program).cycles


def make_launcher(section: Section, signature: Signature, device: str = "") -> Launcher:
    """Return the launcher for an accelerator's section.

    Parameters
    ----------
    device
        Which of several devices of its kind, as `farm.runtime.opencl` names them.

    Raises
    ------
    ArtifactError
        Its format is unknown here.
    InvalidProgram
        Its bytes are no program of its machine.
    BuildFailed
        The device's own compiler refuses it.
    """
    if section.format == EA_PROGRAM:
        return Launcher(EaProgram(section), signature)
    if (section.format, section.format_version) == (OPENCL_SOURCE, 1):
        from farm.runtime.opencl import OpenclProgram  # loads the platform's libraries

        return Launcher(OpenclProgram(section, signature, device), signature)
    raise ArtifactError(
        f"{section}: cannot launch format {section.format} version {section.format_version}; update "
        "kernel-farm or build it again"
    )


def _array_at(address: int, spec: ParamSpec) -> Array:
    raw = (ctypes.c_uint8 * spec.size_bytes).from_address(address)
    return np.frombuffer(memoryview(raw), dtype=np.dtype(spec.dtype)).reshape(spec.shape)
