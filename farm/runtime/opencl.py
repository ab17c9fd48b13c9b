"""Running OpenCL C on a device of this machine.

Owns: which device, building a section's source there, one launch with its buffers. Does not own: the stub that calls it
(`farm.runtime.accelerator`).

Invariant: the device's own compiler builds in `OpenclProgram`, never during a call; what it refuses is BuildFailed with
its log.

Notes
-----
A call's time holds moving the arrays to the device and back.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.artifact.opencl import split_head
from farm.errors import ArtifactError, BuildFailed, DeviceFault, InfrastructureError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farm.artifact.module import Section
    from farm.artifact.signature import Signature
    from farm.runtime.interface import Array

# Read at import: nothing of strangers is kept for other processes, nor a user's home touched.
os.environ["PYOPENCL_NO_CACHE"] = "1"
import pyopencl as cl

MAX_LOG = 4000
_EXACT_DIVISION = 1 << 7
"""CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT."""


class OpenclProgram:
    """A function's kernels on one device, with buffers of their own there."""

    def __init__(self, section: Section, signature: Signature, device: str) -> None:
        head, source = split_head(section.data)
        self._name = section.symbol
        self._params = signature.params
        self._scratch_bytes = max(head.scratch_bytes, 1)
        context, self._queue = _opened(device)
        self._program = _built(context, source, str(section))
        there = set(self._program.get_info(cl.program_info.KERNEL_NAMES).split(";"))
        for launch in head.launches:
            if launch.kernel not in there:
                raise ArtifactError(
                    f"{section}: no kernel {launch.kernel!r} in its source; build it again"
                )
        try:
            self._launches = [
                (cl.Kernel(self._program, launch.kernel), launch.items) for launch in head.launches
            ]
            flags = cl.mem_flags.READ_WRITE
            sizes = [spec.size_bytes for spec in self._params]
            self._buffers = [cl.Buffer(context, flags, size) for size in sizes]
            self._scratch = cl.Buffer(context, flags, self._scratch_bytes)
        except cl.Error as error:
            raise InfrastructureError(
                f"{section}: the device cannot hold it ({error}); use smaller arrays"
            ) from error

    def run(self, arrays: Sequence[Array]) -> None:
        """Run once: arrays to the device, kernels in order, what is written back; raises DeviceFault."""
        try:
            # Outputs too: an element that no kernel writes keeps what the caller put there.
            for buffer, array in zip(self._buffers, arrays, strict=True):
                cl.enqueue_copy(self._queue, buffer, array.reshape(-1), is_blocking=False)
            for kernel, items in self._launches:
                kernel(self._queue, items, None, *self._buffers, self._scratch)
            for buffer, array, spec in zip(self._buffers, arrays, self._params, strict=True):
                if spec.is_output:
                    cl.enqueue_copy(self._queue, array.reshape(-1), buffer, is_blocking=False)
            self._queue.finish()
        except cl.Error as error:
            raise DeviceFault(
                f"{self._name}: the device failed ({error}); look at the kernel",
                fault=str(error)[:200],
            ) from error


def find_device(name: str) -> Any:  # noqa: ANN401 - pyopencl's device
    """Return a device by ``PLATFORM.DEVICE``, both counted from 0; empty: the first of the first platform.

    Raises
    ------
    InvalidInput
        There is none of that name; the message lists what there is.
    InfrastructureError
        No platform is installed.
    """
    _prepare()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise InfrastructureError(
            f"opencl: no platform here ({error}); install kernel-farm[opencl], or a device's driver"
        ) from error
    devices = {
        f"{p}.{d}": device
        for p, platform in enumerate(platforms)
        for d, device in enumerate(platform.get_devices())
    }
    found = devices.get(name or "0.0")
    if found is None:
        known = ", ".join(f"{key} ({device.name.strip()})" for key, device in devices.items())
        raise InvalidInput(f"opencl: no device {name or '0.0'!r}; there is {known or 'none'}")
    return found


@functools.cache
def _prepare() -> None:
    """Set what the platform's loader and PoCL read; a worker's environment is emptied after the import."""
    os.environ["PYOPENCL_HOME"] = str(Path(cl.__file__).parent)  # the loader crashes without it
    folder = tempfile.mkdtemp(prefix="kernel-farm-pocl-")
    os.environ["POCL_CACHE_DIR"] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


@functools.cache
def _opened(name: str) -> tuple[Any, Any]:
    context = cl.Context([find_device(name)])
    return context, cl.CommandQueue(context)


def _built(context: Any, source: str, subject: str) -> Any:  # noqa: ANN401 - pyopencl's objects
    device = context.devices[0]
    options = ["-cl-std=CL1.2"]
    if device.single_fp_config & _EXACT_DIVISION:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a log without an error
            return cl.Program(context, source).build(options)
    except cl.Error as error:
        log = str(error)[-MAX_LOG:]
        raise BuildFailed(
            f"{subject}: the compiler of {device.name.strip()} refuses it ({log}); build it again or report the "
            "function",
            device=device.name.strip(),
            log=log,
        ) from error


def describe(name: str) -> dict[str, object]:
    """Return what a device is, as plain data: name, version and extensions."""
    device = find_device(name)
    return {
        "name": device.name.strip(),
        "platform": device.platform.name.strip(),
        "version": device.version.strip(),
        "extensions": sorted(device.extensions.split()),
    }
