"""Compiling one function in a process of its own, for code of others that may crash a compiler.

Owns: that process, ``python -m farm.codegen.alone``, and how it answers. Does not own: compiling.

Invariant: whatever the function is, this process goes on: a compiler that crashed is BuildFailed.
"""

from __future__ import annotations

import base64
import os
import sys
from dataclasses import asdict
from typing import Any, cast

from farm.artifact import BuiltModule, Signature
from farm.artifact.module import MAX_SECTION_BYTES, Kind
from farm.codegen.compile import compile_function
from farm.core.apart import answers, run_apart
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
    ended = run_apart(
        "farm.codegen.alone",
        [kind, str(target)],
        given=function_bytes,
        limit_s=LIMIT_S,
        most_bytes=2 * MAX_SECTION_BYTES,
    )
    if ended.status is None:
        raise TimeLimit(f"compiler: ran longer than {LIMIT_S:g} s; simplify the function")
    value = ended.answer
    if value is None:
        raise BuildFailed(
            f"the compiler crashed ({ended.how}; {ended.said[-500:] or 'no output'}); correct or report the function",
            signal=ended.how,
        )
    if "error" in value:
        raise error_class(value["code"])(value["error"], **value["details"])
    return _module(value)


def _module(value: dict[str, Any]) -> BuiltModule:
    return BuiltModule(
        **{
            **value,
            "requires": tuple(value["requires"]),
            "signature": Signature.from_object(value["signature"]),
            "data": base64.b64decode(value["data"]),
        }
    )


def main(kind: str, target: str) -> dict[str, Any]:
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
    tell = answers()
    tell(main(*sys.argv[1:3]))
    os._exit(0)  # whatever threads a plug-in left
