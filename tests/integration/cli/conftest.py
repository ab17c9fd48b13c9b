"""The command line against a real farm, and kernels that behave badly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import pytest

from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.cli import main
from farm.target import Target

KERNELS = """\
from farm import te

x = te.placeholder((8,), "int32", name="x")
y = te.compute((8,), lambda i: x[i] * 2, name="y")
functions = [te.function("double", [x, y])]
"""
CRASH = "store volatile i32 1, ptr null\n  ret i32 0"
SPIN = "br label %again\nagain:\n  store volatile i32 1, ptr @word\n  br label %again"


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
        assert set(self.json) == {"error"}
        return self.json["error"]


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path, embedded_farm):
    """Run a command line in an empty folder, with the farm as its tracker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FARM_DEBUG", raising=False)
    monkeypatch.setenv("FARM_TRACKER", embedded_farm.address)

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
def hostile(tmp_path):
    """The file of an artifact with functions ``crash`` and ``spin`` for this machine's CPU."""
    target = Target.parse("llvm")
    modules = [
        BuiltModule(
            kind="device",
            symbol=name,
            target=str(target),
            format="elf-object",
            format_version=1,
            requires=target.requires,
            toolchain="test",
            signature=Signature((ParamSpec("y", "int32", (1,), "output"),)),
            data=_object(name, body),
        )
        for name, body in (("crash", CRASH), ("spin", SPIN))
    ]
    path = tmp_path / "hostile.farm"
    assemble(target, modules).save(path)
    return path


def _object(name: str, body: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    text = f"""
@word = internal global i32 0
@name = private constant [{len(name) + 1} x i8] c"{name}\\00"
@entry = constant {{ ptr, ptr }} {{ ptr @name, ptr @{name} }}, section "farm_functions"
@llvm.used = appending global [1 x ptr] [ptr @entry], section "llvm.metadata"
define i32 @{name}(ptr %args, i32 %count) {{
  {body}
}}
"""
    module = llvm.parse_assembly(text.replace("@entry", f"@entry_{name}"))
    module.triple = machine.triple
    return machine.emit_object(module)
