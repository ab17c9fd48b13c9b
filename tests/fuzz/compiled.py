"""Scheduled functions compiled for a device of this machine, run on it, and compared with the interpreter."""

from __future__ import annotations

import functools
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from farm.artifact import Artifact, BuiltModule, assemble
from farm.codegen import compile_function
from farm.errors import UnsupportedFunction
from farm.ir import Function, interpret, serialise
from farm.runtime.local import local_capabilities
from farm.runtime.native import native_loader
from farm.runtime.qemu import default_capabilities, qemu_loader
from farm.target import Target
from fuzz.oracle import arguments, assert_same

HERE = Target.parse("llvm")


@dataclass(frozen=True)
class Way:
    """One way to run functions.

    Attributes
    ----------
    load
        Gives a loaded artifact, for ``with``.
    host
        Whether a host's stub calls the functions.
    exact
        Whether `exp` gives what it gives elsewhere.
    """

    target: Target
    load: Callable[[Artifact], Any]
    host: bool = False
    exact: bool = True


@dataclass
class Run:
    """What came of a batch: functions that ran, those that were wrong with their story, refusals by their reason."""

    ran: int = 0
    wrong: list[tuple[int, str]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def _native() -> Way:
    here = local_capabilities(accelerators=False)
    return Way(HERE, native_loader(here.targets, here.provides).load)


def _wasm() -> Way:
    from farm.runtime.wasm import wasm_loader

    return Way(Target.parse("wasm"), wasm_loader(cache=_folder()).load)


def _opencl() -> Way:
    here = local_capabilities(accelerators=False)
    provides = {*here.provides, "opencl-c:1.2", "opencl-extension:cl_khr_fp64"}
    loader = native_loader(("opencl", *here.targets), provides)
    return Way(Target.parse("opencl"), loader.load, host=True, exact=False)


def _emulated(machine: str) -> Way:
    vectors = " -mattr=+v" if machine == "riscv64/v" else ""
    return Way(Target.parse(default_capabilities(machine)[0] + vectors), qemu_loader(machine).load)


@functools.cache
def _folder() -> Path:
    """Return a folder that is gone with this process."""
    folder = tempfile.TemporaryDirectory(prefix="kernel-farm-fuzz-")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []
EMULATED = {"aarch64": "aarch64", "armv7": "armv7", "riscv64": "riscv64", "riscv64v": "riscv64/v"}
"""Machines of qemu, by the names that they have here."""

WAYS: dict[str, Callable[[], Way]] = {
    "native": _native,
    "wasm": _wasm,
    "opencl": _opencl,
    **{name: functools.partial(_emulated, machine) for name, machine in EMULATED.items()},
}


@functools.cache
def way_of(name: str) -> Way:
    """Return a way by its name; its packages are loaded then."""
    return WAYS[name]()


def check_compiled(made: Sequence[tuple[int, Function, Function]], name: str) -> Run:
    """Run scheduled functions, all loaded at once.

    Parameters
    ----------
    made
        Seed, original and scheduled function.
    """
    way, run = way_of(name), Run()
    modules: list[BuiltModule] = []
    built = []
    for seed, original, scheduled in made:
        named = replace(scheduled, name=f"{scheduled.name}_{seed}")
        try:
            own = [compile_function(serialise(named), "device", way.target)]
            if way.host:
                own.append(compile_function(serialise(named), "host", HERE))
        except UnsupportedFunction as error:
            run.refused[f"{name}: {error.message.partition(': ')[2][:100]}"] += 1
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            run.wrong.append((seed, f"{name}\n{scheduled}\n{traceback.format_exc(limit=-4)}"))
        else:
            modules += own
            built.append((seed, original, named))
    with way.load(assemble(HERE if way.host else way.target, modules)) as module:
        for seed, original, named in built:
            inputs = arguments(original, seed)
            try:
                found = module.call(named.name, inputs).outputs
                wanted = interpret(original, inputs)
                assert_same(named, tuple(found), wanted, exact=way.exact)
            except Exception:  # noqa: BLE001 - whatever it is, it is a finding
                run.wrong.append((seed, f"{name}\n{named}\n{traceback.format_exc(limit=-3)}"))
            run.ran += 1
    return run
