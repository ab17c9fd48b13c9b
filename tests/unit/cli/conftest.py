"""The command line in this process, and a small file to build."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from farm.artifact import Artifact, BuiltModule, ParamSpec, Signature, assemble
from farm.cli import main

KERNELS = """\
from farm import te

x = te.placeholder((8,), "int32", name="x")
y = te.compute((8,), lambda i: x[i] * 2, name="y")
functions = [te.function("double", [x, y])]
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output, which must be one JSON document."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error of a command that was given ``-o json``."""
        value = self.json
        assert set(value) == {"error"}
        assert set(value["error"]) == {"code", "message", "details"}
        return value["error"]


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """Run a command line in an empty folder: ``cli("inspect", file)``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FARM_DEBUG", raising=False)
    monkeypatch.delenv("FARM_TRACKER", raising=False)

    def run(*arguments):
        code = main.run([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def kernels(tmp_path):
    """A Python file that defines one function."""
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return path


@pytest.fixture
def signature():
    """Of a function with two inputs and two outputs."""
    return Signature(
        (
            ParamSpec("a", "int8", (2, 3), "input"),
            ParamSpec("b", "float32", (4,), "inout"),
            ParamSpec("c", "bool", (), "output"),
        )
    )


@pytest.fixture
def artifact(signature, tmp_path):
    """The file of an artifact with one slice, whose object is no machine code."""
    module = BuiltModule(
        kind="device",
        symbol="mix",
        target="llvm -mtriple=x86_64-linux-gnu -mcpu=generic",
        format="elf-object",
        format_version=1,
        requires=("arch:x86_64",),
        toolchain="none 1",
        signature=signature,
        data=b"not machine code",
    )
    made = assemble("llvm -mtriple=x86_64-linux-gnu -mcpu=generic", [module])
    path = tmp_path / "mix.farm"
    made.save(path)
    assert Artifact.load(path) == made
    return path
