"""Which knobs a function has on an accelerator, asked in a process of its own if the accelerator is a plug-in.

Owns: that process (``python -m farm.codegen.accelerator.asking TARGET``, the function on standard input) and its limit.
Does not own: knobs (`knobs`), or searching (`farm.tune`).
"""

from __future__ import annotations

import os
import sys

from farm.accel import Loaded, guard, load
from farm.accel.discovery import known
from farm.codegen.accelerator.compile import space_on
from farm.codegen.accelerator.knobs import space_of
from farm.core.apart import answers, run_apart
from farm.errors import FarmError
from farm.ir import Function, parse, serialise
from farm.target import Target

LIMIT_S = 60.0


def ask_knobs(function: Function, target: Target) -> dict[str, tuple[int | str, ...]]:
    """Return the values of each knob that a function has on a target, the default first; empty if there are none.

    Raises
    ------
    UnsupportedFunction
        The accelerator cannot run it.
    InvalidTarget
        It is not installed here, or has no such configuration.
    PlugInFailed
        It raised, did not answer in time, or gave nonsense.
    """
    if not target.is_plug_in:
        return knobs_on(load(target.kind), function, target.option("config"))
    who = known(target.kind)
    module = "farm.codegen.accelerator.asking"
    ended = run_apart(module, [str(target)], given=serialise(function), limit_s=LIMIT_S)
    return space_of(str(who), "knobs", guard.told(who, ended, LIMIT_S))


def knobs_on(
    loaded: Loaded, function: Function, config: str | None
) -> dict[str, tuple[int | str, ...]]:
    """Return what `ask_knobs` does, from an accelerator in this process."""
    return space_on(loaded, function, loaded.config(config))


def main(text: str) -> dict[str, object]:
    """Return what this process says of the function on standard input."""
    try:
        target = Target.parse(text, foreign=True)
        function = parse(sys.stdin.buffer.read())
        return {"answer": knobs_on(load(target.kind), function, target.option("config"))}
    except FarmError as error:
        return {"error": error.message, "code": error.code}


if __name__ == "__main__":
    tell = answers()
    tell(main(sys.argv[1]))
    os._exit(0)  # whatever threads it left
