"""Running WebAssembly in this process, compiled by wasmtime.

Owns: one instance of a linked module: its memory, calls, traps, and ending a call that hangs.
Does not own: linking (`farm.runtime.toolchain`).

Invariant: a kernel reaches its own linear memory and nothing else: the module may import nothing. After a trap the
next call gets a new instance.

Notes
-----
`WasmModule.close` from another thread ends a call that runs: code looks at the epoch in each loop. Times are those
of the machine that wasmtime compiles for, and hold what its entry costs, some microseconds.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import wasmtime

from farm.artifact.abi import DEVICE_TYPE_CPU, DTYPES
from farm.artifact.choice import choose, choose_private
from farm.artifact.module import WASM_OBJECT
from farm.core.elements import numpy_dtype
from farm.errors import ArtifactError, DeviceFault, InvalidInput
from farm.runtime.interface import (
    MIN_ALIGN_BYTES,
    POISON,
    Array,
    CallResult,
    LoadedFunction,
    LoadedModule,
    aligned_empty,
    check_call,
    return_error,
)
from farm.runtime.toolchain import cache_folder, link_wasm
from farm.runtime.webassembly import PROVIDES, TARGET
from farm.target import Target

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from farm.artifact.artifact import Artifact
    from farm.artifact.choice import Choice
    from farm.artifact.module import Section
    from farm.artifact.signature import ParamSpec

MAX_MEMORY_BYTES = 1 << 32
_PAGE = 1 << 16
_MAX_STACK_BYTES = 1 << 20
_TENSOR = struct.Struct("<IiiiBBHII4xQ")
"""DLTensor as a machine of 32 bits lays it out: data, device, ndim, dtype, shape, strides, byte_offset."""


@dataclass(frozen=True, slots=True)
class WasmLoader:
    """Loads artifacts into wasmtime; make one with `wasm_loader`."""

    targets: tuple[str, ...]
    provides: frozenset[str]
    cache: Path

    def load(self, artifact: Artifact) -> WasmModule:
        """Link what wasmtime can run of an artifact; see `Loader.load`."""
        choices = choose(artifact, self.targets, self.provides)
        helpers = choose_private(artifact, self.targets, self.provides)
        objects = [choice.linked for choice in choices.values()] + list(helpers.values())
        for section in objects:
            _check_format(section)
        work = Path(tempfile.mkdtemp(prefix="kernel-farm-"))
        try:
            binary = link_wasm(objects, choices, work, self.cache)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return WasmModule(choices, binary)


def wasm_loader(
    targets: Collection[str] = (TARGET,),
    provides: Collection[str] = PROVIDES,
    *,
    cache: Path | None = None,
) -> WasmLoader:
    """Return a loader for WebAssembly; `cache` keeps what modules are linked with."""
    canonical = tuple(str(Target.parse(target)) for target in targets)
    return WasmLoader(canonical, frozenset(provides), cache or cache_folder())


class WasmModule(LoadedModule):
    """An artifact in one instance of wasmtime."""

    def __init__(self, choices: Mapping[str, Choice], binary: bytes) -> None:
        super().__init__(choices)
        self._engine = wasmtime.Engine(_configuration())
        self._lock = threading.Lock()  # held during each call
        self._closed = False
        self._instance: _Instance | None = None
        try:
            self._module = wasmtime.Module(self._engine, binary)
        except wasmtime.WasmtimeError as error:
            raise ArtifactError(
                f"wasm: wasmtime refuses the module ({str(error)[:2000]}); build it again"
            ) from error

    def call(self, symbol: str, inputs: Sequence[Array], repeat: int = 0) -> CallResult:
        """Call a function; see `LoadedModule.call`. Calls of several threads take turns."""
        function = self.function(symbol)
        check_call(function, inputs, repeat)
        with self._lock:
            if self._closed:
                raise InvalidInput(f"{symbol}: its module was closed; load the artifact again")
            if self._instance is None:
                self._instance = _Instance(self._engine, self._module)
            try:
                return _Call(self._instance, function, inputs).run(repeat)
            except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
                self._instance = None
                raise self._fault(symbol, error) from error

    def close(self) -> None:
        """Drop the instance; a call that runs ends with an error."""
        self._closed = True
        self._engine.increment_epoch()
        with self._lock:
            self._instance = None

    def _fault(
        self, symbol: str, error: wasmtime.Trap | wasmtime.WasmtimeError
    ) -> DeviceFault | InvalidInput:
        code = error.trap_code if isinstance(error, wasmtime.Trap) else None
        if self._closed:
            return InvalidInput(
                f"{symbol}: its module was closed during the call; load the artifact again"
            )
        name = code.name if code is not None else "UNKNOWN"
        return DeviceFault(f"{symbol}: trapped ({name}); look at the kernel", fault=name)


class _Instance:
    """A module with a memory of its own."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self.store = wasmtime.Store(engine)
        self.store.set_limits(memory_size=MAX_MEMORY_BYTES)
        self.store.set_epoch_deadline(1)
        exports = wasmtime.Instance(self.store, module, []).exports(self.store)
        self.functions = {
            name: item for name, item in exports.items() if isinstance(item, wasmtime.Func)
        }
        memory, base = exports["memory"], exports["__heap_base"]
        if not isinstance(memory, wasmtime.Memory) or not isinstance(base, wasmtime.Global):
            raise ArtifactError("wasm: the module has no memory of its own; build it again")
        self.memory = memory
        self.heap_base = int(base.value(self.store)) & 0xFFFFFFFF

    def view(self, size_bytes: int) -> Array:
        """Return the memory's first `size_bytes` bytes, growing it to hold them; growing ends earlier views."""
        lacking = size_bytes - self.memory.data_len(self.store)
        if lacking > 0:
            self.memory.grow(self.store, -(-lacking // _PAGE))
        view: Array = np.ctypeslib.as_array(self.memory.get_buffer_ptr(self.store, size_bytes))
        return view


class _Call:
    """The arguments of one call, laid out in an instance's memory behind what the linker put there."""

    def __init__(
        self, instance: _Instance, function: LoadedFunction, inputs: Sequence[Array]
    ) -> None:
        self._instance = instance
        self._function = function
        params = function.signature.params
        given = iter(inputs)
        self._inputs = {i: next(given) for i, spec in enumerate(params) if spec.is_input}
        at = instance.heap_base
        self._places: list[int] = []
        for spec in params:
            at = _aligned(at, max(spec.alignment_bytes, MIN_ALIGN_BYTES))
            self._places.append(at)
            at += spec.size_bytes
        self._head = at = _aligned(at, 8)
        for spec in params:
            at += _TENSOR.size + 4 + 8 * (len(spec.shape) + 1)
        if at > MAX_MEMORY_BYTES - _PAGE:
            raise InvalidInput(
                f"{function.symbol}: its arrays are too large together for WebAssembly ({at} bytes); use "
                f"less than {MAX_MEMORY_BYTES}"
            )
        self._view = instance.view(at)

    def run(self, repeat: int) -> CallResult:
        """Call once for the outputs and `repeat` times for the time."""
        signature, samples = self._function.signature, []
        arguments = self._describe()
        for index, spec in enumerate(signature.params):
            self._fill(index, spec)
        self._invoke(arguments)
        outputs = tuple(
            self._taken(index, spec)
            for index, spec in enumerate(signature.params)
            if spec.is_output
        )
        for _ in range(repeat):
            for index, spec in enumerate(signature.params):
                if spec.role == "inout":
                    self._fill(index, spec)
            samples.append(self._invoke(arguments))
        return CallResult(outputs, tuple(samples))

    def _invoke(self, arguments: int) -> int:
        store, symbol = self._instance.store, self._function.symbol
        code_of, count = self._instance.functions[symbol], len(self._places)
        start = time.perf_counter_ns()
        code = code_of(store, arguments, count)
        elapsed_ns = time.perf_counter_ns() - start
        error = return_error(symbol, self._function.signature, int(code))
        if error:
            raise error
        return elapsed_ns

    def _fill(self, index: int, spec: ParamSpec) -> None:
        place = self._view[self._places[index] :][: spec.size_bytes]
        if spec.is_input:
            place.view(numpy_dtype(spec.dtype)).reshape(spec.shape)[...] = self._inputs[index]
        else:
            place.fill(POISON)

    def _taken(self, index: int, spec: ParamSpec) -> Array:
        array = aligned_empty(spec)
        array.reshape(-1).view(np.uint8)[:] = self._view[self._places[index] :][: spec.size_bytes]
        return array

    def _describe(self) -> int:
        """Write tensors, extents and the list of arguments; return the list's address."""
        tensors, extents, at = b"", b"", self._head
        params = self._function.signature.params
        shapes = at + _TENSOR.size * len(params)
        for place, spec in zip(self._places, params, strict=True):
            code, bits = DTYPES[spec.dtype]
            shape = shapes + len(extents)
            tensors += _TENSOR.pack(
                *(place, DEVICE_TYPE_CPU, 0, len(spec.shape), code, bits, 1, shape, 0, 0)
            )
            extents += struct.pack(f"<{len(spec.shape)}q", *spec.shape)
        addresses = [at + index * _TENSOR.size for index in range(len(params))]
        data = tensors + extents + struct.pack(f"<{len(params)}I", *addresses)
        self._view[at : at + len(data)] = np.frombuffer(data, np.uint8)
        return shapes + len(extents)


def _aligned(at: int, align: int) -> int:
    return -(-at // align) * align


def _check_format(section: Section) -> None:
    if (section.format, section.format_version) != (WASM_OBJECT, 1):
        raise ArtifactError(
            f"{section}: cannot link format {section.format} version {section.format_version} for "
            "wasmtime; update kernel-farm or build it again"
        )


def _configuration() -> wasmtime.Config:
    config = wasmtime.Config()
    config.epoch_interruption = True
    config.memory_may_move = False  # a call keeps a view of it
    config.parallel_compilation = False  # workers start no threads of their own
    config.max_wasm_stack = _MAX_STACK_BYTES
    return config
