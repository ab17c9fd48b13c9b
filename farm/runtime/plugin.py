"""Running an accelerator's programs through its hooks, in this process.

Owns: which hook runs which format, the arrays that it sees, and what becomes of what it raises.
Does not own: which section is run (`farm.artifact.choice`), calling from compiled code (`farm.runtime.accelerator`).

Invariant: a hook cannot write into inputs; what it raises or returns that makes no sense is the kernel's failure, and
names the accelerator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.accel import Loaded, Run, guard, load
from farm.core.elements import NAMES, numpy_dtype
from farm.errors import ArtifactError, FarmError, KernelFailed, PlugInFailed
from farm.target import Target

if TYPE_CHECKING:
    from farm.artifact.module import Section
    from farm.artifact.signature import Signature
    from farm.runtime.interface import Array


class PlugInProgram:
    """One program of an accelerator, loaded.

    Parameters
    ----------
    unit
        Which of several devices; empty: the only one.

    Raises
    ------
    InvalidTarget
        The accelerator is not installed here.
    ArtifactError
        It has another version, or no program of this format.
    PlugInFailed
        Its hook raised, or gave nonsense.
    """

    def __init__(self, section: Section, signature: Signature, unit: str = "") -> None:
        target = Target.parse(section.target, foreign=True)
        loaded = load(target.kind)
        version = loaded.accelerator.version
        if section.format not in _openers(loaded) or section.format_version != version:
            raise ArtifactError(
                f"{section}: format {section.format} version {section.format_version} does not run on {loaded.who}, "
                f"whose programs have version {version}; build it again or install another version"
            )
        self._who, self._symbol = loaded.who, section.symbol
        self._is_input = [spec.role == "input" for spec in signature.params]
        config = loaded.config(target.option("config"))
        self._run = open_program(loaded, section.format, section.data, config, unit)

    def run(self, arrays: Sequence[Array]) -> int | None:
        """Run once; return the cycles that the accelerator counted, if it counts.

        Raises
        ------
        KernelFailed
            Whatever went wrong; or the accelerator's own error of the farm.
        """
        for array, is_input in zip(arrays, self._is_input, strict=True):
            array.flags.writeable = not is_input
        try:
            cycles: object = guard.call(self._who, "the program", self._run, tuple(arrays))
            if cycles is not None and (not isinstance(cycles, int | np.integer) or cycles < 0):
                raise guard.nonsense(self._who, "the program", cycles, "cycles or None")
        except PlugInFailed as error:
            raise KernelFailed(f"{self._symbol}: {error.message}", **error.details) from error
        except FarmError:
            raise
        return None if cycles is None else int(cycles)


def open_program(loaded: Loaded, form: str, program: bytes, config: object, unit: str) -> Run:
    """Return what runs a program of one of an accelerator's formats; raises as `PlugInProgram`."""
    return _openers(loaded)[form](loaded, program, config, unit)


def _openers(loaded: Loaded) -> Mapping[str, Callable[[Loaded, bytes, object, str], Run]]:
    it = loaded.accelerator
    return {
        it.program_format: _launched,
        f"{it.name}-call": _called,
        f"{it.name}-intrinsics": _executed,
    }


def _launched(loaded: Loaded, program: bytes, config: object, unit: str) -> Run:
    launch = loaded.accelerator.launch
    if launch is None:
        raise guard.nonsense(loaded.who, "launch", launch, "a function, since there is a program")
    run = guard.call(loaded.who, "launch", launch, program, config, unit)
    if not callable(run):
        raise guard.nonsense(loaded.who, "launch", run, "a function that runs the program")
    return run


def _called(loaded: Loaded, program: bytes, config: object, unit: str) -> Run:
    call = _read_call(loaded, program)
    name = call["external"]
    found = next((it for it in loaded.accelerator.externals if it.name == name), None)
    if found is None:
        raise ArtifactError(f"{loaded.who}: has no external function {name!r}; build it again")
    external = found
    workspace = np.empty(call["workspace_bytes"], np.uint8)

    def run(arrays: Sequence[Array]) -> int | None:
        result: Any = external.call(call["sizes"], config, arrays, workspace, call["knobs"])
        return result if isinstance(result, int) else None

    return run


def _read_call(loaded: Loaded, program: bytes) -> dict[str, Any]:
    """Return what `farm.codegen.accelerator.library` wrote, checked."""
    try:
        value = json.loads(program)
        call: dict[str, Any] = {
            "external": str(value["external"]),
            "sizes": {str(k): int(v) for k, v in value["sizes"].items()},
            "knobs": {str(k): v for k, v in value["knobs"].items() if isinstance(v, int | str)},
        }
        workspace_bytes = int(value["workspace_bytes"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArtifactError(f"{loaded.who}: malformed call ({error}); build it again") from error
    if not 0 <= workspace_bytes <= 1 << 32:
        raise ArtifactError(f"{loaded.who}: workspace of {workspace_bytes} bytes; build it again")
    return {**call, "workspace_bytes": workspace_bytes}


MAX_MEMORY_BYTES = 1 << 31


def _executed(loaded: Loaded, program: bytes, config: object, unit: str) -> Run:
    """Return what puts arrays into a memory with zeros around them, runs intrinsics on it, and takes the result out."""
    execute = loaded.accelerator.execute
    if execute is None:
        raise ArtifactError(f"{loaded.who}: has no intrinsics; build it again")
    head, _, instructions = program.partition(b"\n")
    size, regions = _read_regions(loaded, head)

    def run(arrays: Sequence[Array]) -> int | None:
        memory = np.zeros(size, np.uint8)
        out = arrays[-1]
        for region in regions:
            array = arrays[region.arg]
            if array.flags.writeable:
                out, result = array, region
            else:
                region.of(memory, array.shape)[...] = array
        cycles = execute(instructions, memory, config, unit)
        out[...] = result.of(memory, out.shape)
        return cycles

    return run


@dataclass(frozen=True, slots=True)
class _Region:
    """Where a parameter lies in the memory."""

    arg: int
    address: int
    dtype: str
    shape: tuple[int, ...]
    origin: tuple[int, ...]

    def of(self, memory: Array, own: tuple[int, ...]) -> Array:
        """Return the part of a memory that holds the parameter's own elements."""
        kind = numpy_dtype(self.dtype)
        count = math.prod(self.shape) * kind.itemsize
        whole = memory[self.address : self.address + count].view(kind).reshape(self.shape)
        return whole[tuple(slice(at, at + n) for at, n in zip(self.origin, own, strict=True))]


def _read_regions(loaded: Loaded, head: bytes) -> tuple[int, list[_Region]]:
    """Return what `farm.codegen.accelerator.tensorized` wrote, checked."""
    try:
        value = json.loads(head)
        size = int(value["memory_bytes"])
        regions = [
            _Region(
                int(it["arg"]),
                int(it["address"]),
                NAMES[NAMES.index(it["dtype"])],
                tuple(map(int, it["shape"])),
                tuple(map(int, it["origin"])),
            )
            for it in value["regions"]
        ]
        ends = [it.address + math.prod(it.shape) * numpy_dtype(it.dtype).itemsize for it in regions]
        lows = [n for it in regions for n in (it.arg, it.address, *it.shape, *it.origin)]
    except (ValueError, TypeError, KeyError) as error:
        raise ArtifactError(f"{loaded.who}: malformed program ({error}); build it again") from error
    if not 0 <= size <= MAX_MEMORY_BYTES or max(ends, default=0) > size or min(lows, default=0) < 0:
        raise ArtifactError(f"{loaded.who}: impossible places in its memory; build it again")
    return size, regions
