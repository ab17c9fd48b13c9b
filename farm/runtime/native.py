"""Running compiled code in this process, linked by LLVM's ORC.

Owns: linking an artifact's chosen objects into memory, calling them, timing them.
Does not own: the choice (`farm.artifact.choice`), or surviving a kernel that crashes: it takes this
process with it, so the agent runs this in a child that may die.

Invariant: code is unmapped only after the last call returned; objects can reach nothing of this
process but `ALLOWED_IMPORTS`.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import numpy as np

from farm.artifact.abi import ALLOWED_IMPORTS, context_symbol, launch_symbol, parallel_symbol
from farm.artifact.choice import Choice, choose, choose_private
from farm.errors import ArtifactError, InvalidInput
from farm.runtime.accelerator import Launcher, make_launcher
from farm.runtime.assembled import object_of
from farm.runtime.dlpack import PackedFunction, TensorList
from farm.runtime.elf import check_link, read_elf
from farm.runtime.interface import (
    POISON,
    Array,
    CallResult,
    LoadedFunction,
    LoadedModule,
    ShortCall,
    aligned_empty,
    check_call,
    fresh_copy,
    poisoned,
    return_error,
    usable_input,
)
from farm.runtime.lines import Watch
from farm.runtime.pool import Pool, check_threads
from farm.runtime.prepared import GuardedFunction, check_sets
from farm.target.host import host_triple

if TYPE_CHECKING:
    from farm.artifact.artifact import Artifact
    from farm.artifact.module import Section
    from farm.artifact.signature import ParamSpec

MAX_SHORT_BYTES = 256 << 10
"""Arrays of a function that is worth keeping buffers for; above that copying is what costs."""

Timer = Callable[[], int]
"""Reads a steady clock in nanoseconds; only differences mean anything."""


@dataclass(frozen=True, slots=True)
class NativeLoader:
    """Loads artifacts into this process.

    Parameters
    ----------
    targets, provides
        What this device runs and has, as in `farm.artifact.choose`.
    timer_ns
        Clock of the samples.
    device
        Which accelerator, where there are several of one kind.
    threads
        How many threads a parallel loop may use, the caller's among them: 1 to 64.
    """

    targets: tuple[str, ...]
    provides: frozenset[str]
    timer_ns: Timer = time.perf_counter_ns
    device: str = ""
    threads: int = 1

    def __post_init__(self) -> None:
        check_threads(self.threads)

    def load(self, artifact: Artifact) -> NativeModule:
        """Link what this process can run of an artifact; see `Loader.load`."""
        choices = choose(artifact, self.targets, self.provides)
        helpers = choose_private(artifact, self.targets, self.provides)
        objects = [choice.linked for choice in choices.values()] + list(helpers.values())
        check_link(host_triple().partition("-")[0], objects)
        launchers = {
            symbol: make_launcher(choice.section, choice.signature, self.device)
            for symbol, choice in choices.items()
            if choice.host is not None
        }
        return NativeModule(choices, objects, launchers, self.timer_ns, self.threads)


def native_loader(
    targets: Collection[str], provides: Collection[str], device: str = "", *, threads: int = 1
) -> NativeLoader:
    """Return a loader for this process and the accelerators among `targets`."""
    return NativeLoader(tuple(targets), frozenset(provides), device=device, threads=threads)


class NativeModule(LoadedModule):
    """An artifact linked into this process."""

    def __init__(
        self,
        choices: Mapping[str, Choice],
        objects: Sequence[Section],
        launchers: Mapping[str, Launcher],
        timer_ns: Timer,
        threads: int = 1,
    ) -> None:
        super().__init__(choices)
        self._launchers = dict(launchers)
        self._timer_ns = timer_ns
        self._closed = False
        exports = set(choices)
        for symbol in launchers:
            exports |= {launch_symbol(symbol), context_symbol(symbol)}
        shared_out = _parallel(objects) if threads > 1 else []
        self._library = _link(objects, exports.union(shared_out))
        self._pool = Pool(_LINKER.link, threads) if shared_out else None
        for name in shared_out:
            _write_pointer(self._library[name], self._pool.launcher if self._pool else 0)
        self._watch = Watch(
            _LINKER.link, objects, {symbol: self._library[symbol] for symbol in choices}
        )
        self._code = {symbol: PackedFunction(self._library[symbol]) for symbol in choices}
        for symbol, launcher in self._launchers.items():
            _write_pointer(self._library[launch_symbol(symbol)], launcher.address)
            _write_pointer(self._library[context_symbol(symbol)], 0)

    def call(self, symbol: str, inputs: Sequence[Array], repeat: int = 0) -> CallResult:
        """Call a function; see `LoadedModule.call`."""
        if self._closed:
            raise InvalidInput(f"{symbol}: its module was closed; load the artifact again")
        function = self.function(symbol)
        check_call(function, inputs, repeat)
        frame = _Frame(function, inputs)
        self._invoke(function, frame)
        outputs = frame.outputs(copied=repeat > 0)
        samples = []
        for _ in range(repeat):
            frame.restore()
            samples.append(self._invoke(function, frame))
        return CallResult(outputs, tuple(samples))

    def short_call(self, symbol: str) -> ShortCall:
        """Return a fast way to call a function; see `LoadedModule.short_call`."""
        function = self.function(symbol)
        if sum(spec.size_bytes for spec in function.signature.params) > MAX_SHORT_BYTES:
            return ShortCall(self, function)
        return _Short(self, function)

    def prepare(self, symbol: str, sets: int = 1) -> GuardedFunction:
        """Return a function on guarded arrays; see `LoadedModule.prepare`."""
        check_sets(sets)
        function = self.function(symbol)

        def check(code: int) -> None:
            self._raise_launch_errors()
            if error := return_error(symbol, function.signature, code):
                raise error

        return GuardedFunction(function, self._library[symbol], repeater(), check, sets)

    def cycles(self) -> int | None:
        """Return the cycles of every launch so far; see `LoadedModule.cycles`."""
        counts = [launcher.cycles for launcher in self._launchers.values()]
        return sum(count for count in counts if count is not None) if any(counts) else None

    def run(self, function: LoadedFunction, tensors: TensorList) -> None:
        """Run a function once on what is in `tensors`; raises what it failed of."""
        if self._closed:
            raise InvalidInput(f"{function.symbol}: its module was closed; load the artifact again")
        code = self._code[function.symbol](tensors.pointers, tensors.count)
        if self._launchers:
            self._raise_launch_errors()
        if code and (error := return_error(function.symbol, function.signature, code)):
            raise error

    def close(self) -> None:
        """Unmap the code."""
        if not self._closed:
            self._closed = True
            self._code.clear()
            self._watch.close()
            if self._pool is not None:
                self._pool.close()
            self._library.close()

    def _invoke(self, function: LoadedFunction, frame: _Frame) -> int:
        code_of, pointers, count = (
            self._code[function.symbol],
            frame.list.pointers,
            frame.list.count,
        )
        timer_ns = self._timer_ns
        start = timer_ns()
        code = code_of(pointers, count)
        elapsed_ns = timer_ns() - start
        self._raise_launch_errors()
        error = return_error(function.symbol, function.signature, code)
        if error:
            raise error
        return elapsed_ns

    def _raise_launch_errors(self) -> None:
        errors = [launcher.take_error() for launcher in self._launchers.values()]
        for error in filter(None, errors):
            raise error


class _Short(ShortCall):
    """With buffers that are made once and filled afresh for each call, outputs with poison."""

    def __init__(self, module: NativeModule, function: LoadedFunction) -> None:
        super().__init__(module, function)
        params = function.signature.params
        arrays = [aligned_empty(spec) for spec in params]
        views = [array.reshape(-1).view(np.uint8).data for array in arrays]
        sized = [(spec, view, spec.size_bytes) for spec, view in zip(params, views, strict=True)]
        self._run = module.run
        self._function = function
        self._tensors = TensorList(arrays)
        self._from = [(view, size) for spec, view, size in sized if spec.is_input]
        self._to = [(view, size) for spec, view, size in sized if spec.is_output]
        self._poison = [
            (view, bytes([POISON]) * size) for spec, view, size in sized if not spec.is_input
        ]

    def __call__(self, inputs: memoryview, start: int, outputs: memoryview, end: int) -> None:
        """Call once; see `ShortCall`."""
        for view, size in self._from:
            view[:] = inputs[start : start + size]
            start += size
        for view, poison in self._poison:
            view[:] = poison
        self._run(self._function, self._tensors)
        for view, size in self._to:
            outputs[end : end + size] = view
            end += size


class _Frame:
    """The arguments of one call, and what it takes to call again."""

    def __init__(self, function: LoadedFunction, inputs: Sequence[Array]) -> None:
        given = iter(inputs)
        self._params = function.signature.params
        self._arrays: list[Array] = []
        self._originals: list[tuple[Array, Array]] = []
        for spec in self._params:
            self._arrays.append(self._array(spec, next(given) if spec.is_input else None))
        self.list = TensorList(self._arrays)

    def _array(self, spec: ParamSpec, given: Array | None) -> Array:
        if given is None:
            return poisoned(spec)
        if spec.role == "input":
            return usable_input(spec, given)
        array = fresh_copy(spec, given)
        self._originals.append((array, given))
        return array

    def restore(self) -> None:
        """Put back what the inout parameters held before the first call."""
        for array, original in self._originals:
            np.copyto(array, original)

    def outputs(self, *, copied: bool) -> tuple[Array, ...]:
        """Return the arrays of outputs, copied if the kernel will run on them again."""
        return tuple(
            array.copy() if copied else array
            for spec, array in zip(self._params, self._arrays, strict=True)
            if spec.is_output
        )


def _parallel(objects: Sequence[Section]) -> list[str]:
    """Return the globals in which objects with parallel loops look for a launcher."""
    slots = {parallel_symbol(section.symbol) for section in objects}
    found = set().union(*(read_elf(section.data).defined for section in objects))
    return sorted(slots & found)


def _link(objects: Sequence[Section], exports: set[str]) -> llvm.ResourceTracker:
    builder = llvm.JITLibraryBuilder()
    for section in objects:
        builder.add_object_img(section.data)
    for name, address in _import_addresses().items():
        builder.import_symbol(name, address)
    for name in sorted(exports):
        builder.export_symbol(name)
    try:
        return _LINKER.link(builder)
    except RuntimeError as error:
        raise ArtifactError(
            f"link: the objects do not fit ({str(error)[:2000]}); build them again"
        ) from error


@functools.cache
def _import_addresses() -> dict[str, int]:
    process = ctypes.CDLL(None)
    return {
        name: ctypes.cast(getattr(process, name), ctypes.c_void_p).value or 0
        for name in ALLOWED_IMPORTS
    }


class _Linker:
    """The linker of this process, which modules share: making one costs more than a link.

    A module is a library of its own in it, so that equal names in two modules do not meet. What a library leaves when
    it is closed stays with its linker, so after `LIBRARIES` of them another is made; the old one goes with its last
    module. A process that is forked has its parent's, ready to link.
    """

    LIBRARIES = 256

    def __init__(self) -> None:
        self._jit: llvm.LLJIT | None = None
        self._count = 0
        self._lock = threading.Lock()

    def link(self, builder: llvm.JITLibraryBuilder) -> llvm.ResourceTracker:
        """Link a library; raises RuntimeError if its objects do not fit."""
        with self._lock:
            if self._jit is None or self._count == self.LIBRARIES:
                llvm.initialize_native_target()
                llvm.initialize_native_asmprinter()
                self._jit = llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)
                self._count = 0
            self._count += 1
            return builder.link(self._jit, f"artifact-{self._count}")


_LINKER = _Linker()


@functools.cache
def repeater() -> Callable[..., int]:
    """Return ``farm_repeat`` of ``repeat.ll``, linked into this process; a process that is forked has its parent's."""
    builder = llvm.JITLibraryBuilder()
    builder.add_object_img(object_of("repeat.ll"))
    builder.export_symbol("farm_repeat")
    library = _LINKER.link(builder)
    types = (
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64),
        *(ctypes.c_int32, ctypes.c_int64),
    )
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(library["farm_repeat"])
    function.library = library  # type: ignore[attr-defined]  # keeps the code mapped
    return function


def _write_pointer(address: int, value: int) -> None:
    ctypes.c_void_p.from_address(address).value = value
