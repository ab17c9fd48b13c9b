"""Modules to put into artifacts; their bytes are never run."""

from __future__ import annotations

import pytest

from farm.artifact import BuiltModule, ParamSpec, Signature
from farm.target import Target

HOST = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64"
SIGNATURE = Signature(
    (ParamSpec("x", "float32", (2, 3), "input"), ParamSpec("y", "int8", (), "output", 64))
)


@pytest.fixture(scope="session")
def make():
    """Make a module: ``make(symbol, target, kind=..., data=..., signature=...)``."""

    def make_module(symbol, target=HOST, *, kind="device", data=b"code", signature=SIGNATURE):
        parsed = Target.parse(target)
        accelerated = parsed.is_accelerator
        return BuiltModule(
            kind=kind,
            symbol=symbol,
            target=str(parsed),
            format="ea-program" if accelerated else "elf-object",
            format_version=1,
            requires=parsed.requires,
            toolchain="compiler 1.0",
            signature=signature,
            data=data,
        )

    return make_module
