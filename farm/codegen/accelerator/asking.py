"""Which knobs a function has on an accelerator, asked in a process of its own if the accelerator is a plug-in.

Owns: that process (``python -m farm.codegen.accelerator.asking TARGET``, the function on standard input) and its limit.
Does not own: knobs (`knobs`), or searching (`farm.tune`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from farm.accel import Loaded, guard, load
from farm.accel.discovery import known
from farm.codegen.accelerator.knobs import space_of
from farm.codegen.accelerator.layer import layer_of
from farm.codegen.accelerator.library import space_of_external
from farm.codegen.accelerator.tensorized import space_of_intrinsics
from farm.errors import FarmError, PlugInFailed, UnsupportedFunction, error_class
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
    command = [sys.executable, "-P", "-m", "farm.codegen.accelerator.asking", str(target)]
    try:
        done = subprocess.run(
            command, input=serialise(function), capture_output=True, timeout=LIMIT_S, check=False
        )
        value = json.loads(done.stdout.decode().splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise PlugInFailed(
            f"accelerator {who}: knobs did not answer within {LIMIT_S:g} s; report it to its author",
            plug_in=str(who),
        ) from error
    except (ValueError, IndexError) as error:
        raise PlugInFailed(
            f"accelerator {who}: knobs ended its process (code {done.returncode}); report it to its author",
            plug_in=str(who),
        ) from error
    if "error" in value:
        raise error_class(str(value["code"]))(str(value["error"]))
    return space_of(str(who), "knobs", value["knobs"])


def knobs_on(
    loaded: Loaded, function: Function, config: str | None
) -> dict[str, tuple[int | str, ...]]:
    """Return what `ask_knobs` does, from an accelerator in this process."""
    it, who, value = loaded.accelerator, loaded.who, loaded.config(config)
    reasons = []
    for external in it.externals:
        layer = layer_of(function)
        hook = f"{external.name}.supports"
        why = guard.text(who, hook, guard.call(who, hook, external.supports, layer, value))
        if not why:
            return space_of_external(loaded, external, layer, value)
        reasons.append(f"{external.name}: {why}")
    if it.intrinsics:
        try:
            return space_of_intrinsics(loaded, layer_of(function))
        except UnsupportedFunction as error:
            reasons.append(error.message)
            if it.compile is None:
                raise
    why = "" if it.compile is not None else "it has no code generator of its own"
    if not why and it.supports is not None:
        said = guard.call(who, "supports", it.supports, function, value)
        why = guard.text(who, "supports", said)
    if why:
        raise UnsupportedFunction(
            f"function {function.name} on {it.name}: {'; '.join([*reasons, why])}; place it on the CPU"
        )
    if it.knobs is None:
        return {}
    return space_of(who, "knobs", guard.call(who, "knobs", it.knobs, function, value))


def main(text: str) -> dict[str, object]:
    """Return what this process says of the function on standard input."""
    try:
        target = Target.parse(text, foreign=True)
        function = parse(sys.stdin.buffer.read())
        return {"knobs": knobs_on(load(target.kind), function, target.option("config"))}
    except FarmError as error:
        return {"error": error.message, "code": error.code}


if __name__ == "__main__":
    own = os.dup(1)
    os.dup2(2, 1)  # what the plug-in prints is no answer
    os.write(own, f"{json.dumps(main(sys.argv[1]))}\n".encode())
    os._exit(0)  # whatever threads it left
