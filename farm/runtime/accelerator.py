"""Launching an accelerator's program from the host stub that compiled code calls.

Owns: the callback behind ``__farm_launch_NAME``, and carrying its exception over compiled code.
Does not own: the machine (`farm.ea`) or the stub (compiled with the artifact).

Invariant: no exception crosses compiled code; one that a launch raised is given out once, by
`take_error`, whatever the code in between made of the return value.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.artifact.module import EA_PROGRAM, Section
from farm.ea.config import find_config
from farm.ea.emulator import Machine
from farm.ea.encoding import decode_program
from farm.errors import ArtifactError
from farm.target import Target

if TYPE_CHECKING:
    from farm.artifact.signature import ParamSpec, Signature
    from farm.runtime.interface import Array

LaunchFunction = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
"""``int32_t (*)(void *context, void *const *buffers)``; it releases no lock, Python runs in it."""


class Launcher:
    """Runs one program on an emulated machine of its own.

    A fault stops that machine, as it would a real one; the next launch resets it first.
    """

    def __init__(self, section: Section, signature: Signature) -> None:
        config = find_config(Target.parse(section.target).option("config") or "")
        self._program = decode_program(section.data, config)
        self._machine = Machine(config)
        self._params = signature.params
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
            if self._machine.fault is not None:
                self._machine.reset()
            self._machine.run(self._program, arrays)
        except BaseException as error:  # noqa: BLE001 - compiled code cannot carry it
            self._error = self._error or error
            return 1
        return 0


def make_launcher(section: Section, signature: Signature) -> Launcher:
    """Return the launcher for an accelerator's section.

    Raises
    ------
    ArtifactError
        Its format is unknown here.
    InvalidProgram
        Its bytes are no program of its machine.
    """
    if section.format != EA_PROGRAM:
        raise ArtifactError(
            f"{section}: cannot launch format {section.format}; update kernel-farm or build it again"
        )
    return Launcher(section, signature)


def _array_at(address: int, spec: ParamSpec) -> Array:
    raw = (ctypes.c_uint8 * spec.size_bytes).from_address(address)
    return np.frombuffer(memoryview(raw), dtype=np.dtype(spec.dtype)).reshape(spec.shape)
