"""Compiling one function in a process of its own, for code of others that may crash a compiler.

Owns: that process, ``python -m farm.codegen.alone``, and how it answers. Does not own: compiling.

Invariant: whatever the function is, this process goes on: a compiler that crashed is BuildFailed.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import Any, cast

from farm.artifact import BuiltModule, Signature
from farm.artifact.module import Kind
from farm.codegen.compile import compile_function
from farm.errors import BuildFailed, FarmError, TimeLimit, error_class
from farm.target import Target

LIMIT_S = 300.0


def compile_alone(function_bytes: bytes, kind: Kind, target: Target) -> BuiltModule:
    """Compile one function as `compile_function` does, in a process of its own.

    Raises
    ------
    FarmError
        As `compile_function`.
    BuildFailed
        The compiler crashed; ``details['signal']`` says how.
    TimeLimit
        It ran longer than five minutes.
    """
    command = [sys.executable, "-P", "-m", "farm.codegen.alone", kind, str(target)]
    try:
        done = subprocess.run(
            command, input=function_bytes, capture_output=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TimeLimit(
            f"compiler: ran longer than {LIMIT_S:g} s; simplify the function"
        ) from error
    try:
        value = json.loads(done.stdout)
    except ValueError as error:
        how = _ending(done.returncode)
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise BuildFailed(
            f"the compiler crashed ({how}; {said or 'no output'}); correct or report the function",
            signal=how,
        ) from error
    if "error" in value:
        raise error_class(value["code"])(value["error"], **value["details"])
    return _module(value)


def _ending(status: int) -> str:
    if status < 0:
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"SIG{-status}"
    return f"exit code {status}"


def _module(value: dict[str, Any]) -> BuiltModule:
    return BuiltModule(
        **{
            **value,
            "requires": tuple(value["requires"]),
            "signature": Signature.from_object(value["signature"]),
            "data": base64.b64decode(value["data"]),
        }
    )


def main(kind: str, target: str) -> dict[str, object]:
    """Compile what standard input holds; return what `compile_alone` reads."""
    try:
        module = compile_function(
            sys.stdin.buffer.read(), cast(Kind, kind), Target.parse(target, foreign=True)
        )
    except FarmError as error:
        return {"error": error.message, "code": error.code, "details": error.details}
    plain = {
        "signature": module.signature.to_object(),
        "data": base64.b64encode(module.data).decode(),
    }
    return asdict(module) | plain


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:3])))
