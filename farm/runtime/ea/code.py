"""Compiling a machine for this host, once.

Owns the object of a configuration: made from the emitters of this package, kept in a cache folder by
everything that it depends on, linked into this process.

Invariant: the cache holds whole objects only; losing it costs only time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from farm.core.files import write_atomic
from farm.ea.config import MachineConfig
from farm.errors import InfrastructureError
from farm.runtime.ea.checking import CHECK, emit_check
from farm.runtime.ea.computing import COMPUTE, emit_compute
from farm.runtime.ea.scheduling import TIME, emit_time

VERSION = 2
"""Changes whenever the compiled code does, so that no old object is taken from the cache."""
LEVEL = 2


class _Function:
    """A compiled function that takes arrays and, last, a count."""

    def __init__(self, address: int, pointers: int) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * pointers, ctypes.c_int64)
        self._call = kind(address)

    def __call__(self, *arguments: Any) -> int:
        *arrays, count = arguments
        return int(self._call(*(array.ctypes.data for array in arrays), count))


class MachineCode:
    """The three functions of a compiled machine."""

    def __init__(self, data: bytes) -> None:
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()
        self.check = _Function(self._engine.get_function_address(CHECK), 5)
        self.compute = _Function(self._engine.get_function_address(COMPUTE), 6)
        self.time = _Function(self._engine.get_function_address(TIME), 5)


@functools.cache
def machine_code(config: MachineConfig, cache: Path) -> MachineCode:
    """Return a machine's code, from the cache or compiled now (in about a second).

    Parameters
    ----------
    cache
        Folder for objects; may be unwritable.
    """
    cpu = llvm.get_host_cpu_name()
    facts = f"{VERSION} {config.config_id} {llvmlite.__version__} {llvm.llvm_version_info} {cpu} "
    facts += llvm.get_host_cpu_features().flatten()
    cached = cache / f"ea-{config.name}-{hashlib.sha256(facts.encode()).hexdigest()[:32]}.o"
    data = _from_cache(cached)
    if data is None:
        data = compile_machine(config)
        with contextlib.suppress(OSError):  # an unwritable or full cache costs only time
            cache.mkdir(parents=True, exist_ok=True)
            write_atomic(cached, hashlib.sha256(data).digest() + data)
    return MachineCode(data)


def _from_cache(path: Path) -> bytes | None:
    """Return an object from the cache, None if it is not there or not whole: it would run as it is."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    return data[size:] if hashlib.sha256(data[size:]).digest() == data[:size] else None


def compile_machine(config: MachineConfig) -> bytes:
    """Return the object of a machine for this host."""
    machine = _target_machine()
    module = ir.Module(name=f"farm-{config.name}")
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    emit_check(module, config)
    emit_compute(module, config)
    emit_time(module, config)
    try:
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
    except RuntimeError as error:
        raise InfrastructureError(
            f"{config.name}: its emulator does not compile ({error})"
        ) from error
    # What can be a vector is written as one; looking for more would only take seconds.
    tuning = llvm.create_pipeline_tuning_options(speed_level=LEVEL)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(parsed, passes)
    data: bytes = machine.emit_object(parsed)
    return data


def _target_machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )
