"""Scheduled functions compiled for this machine, compared with the interpreter."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import replace

from farm.artifact import assemble
from farm.codegen import compile_function
from farm.ir import Function, interpret, serialise
from farm.runtime.local import local_capabilities
from farm.runtime.native import NativeLoader
from farm.target import Target
from fuzz.oracle import arguments, assert_same

HERE = Target.parse("llvm")


def check_native(made: Sequence[tuple[int, Function, Function]]) -> list[tuple[int, str]]:
    """Run scheduled functions, all loaded at once, and return those that are wrong, with the story.

    Parameters
    ----------
    made
        Seed, original and scheduled function.
    """
    wrong, modules, names = [], [], {}
    for seed, _, scheduled in made:
        names[seed] = f"{scheduled.name}_{seed}"
        try:
            modules.append(
                compile_function(serialise(replace(scheduled, name=names[seed])), "device", HERE)
            )
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            wrong.append((seed, f"{scheduled}\n{traceback.format_exc(limit=-4)}"))
    broken = {seed for seed, _ in wrong}
    here = local_capabilities(accelerators=False)
    with NativeLoader(here.targets, here.provides).load(assemble(HERE, modules)) as module:
        for seed, original, scheduled in made:
            if seed in broken:
                continue
            inputs = arguments(original, seed)
            try:
                found = module.call(names[seed], inputs).outputs
                assert_same(scheduled, tuple(found), interpret(original, inputs))
            except Exception:  # noqa: BLE001 - whatever it is, it is a finding
                wrong.append((seed, f"{scheduled}\n{traceback.format_exc(limit=-3)}"))
    return wrong
