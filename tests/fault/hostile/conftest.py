"""A farm of plain processes with one sandboxed agent, and hand-written kernels for this machine's own CPU."""

from __future__ import annotations

import platform
from pathlib import Path

import llvmlite.binding as llvm
import pytest

import farm
from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.target import Target
from farm.testing import AgentPlan, EmbeddedFarm

TRIPLE = "x86_64-linux-gnu"
TARGET = f"llvm -mtriple={TRIPLE}"
FAMILY = "llvm/x86_64"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Where the farm keeps its files; the agent's work folder is somewhere below it."""
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def embedded(data_dir):
    """A farm for one file of tests: later tests count the processes of this session, so it must not outlive them."""
    if platform.machine() != "x86_64":
        pytest.skip("needs an x86-64 host: the kernels make its system calls")
    plan = AgentPlan("target", (FAMILY,), ("cpu@one", "cpu@two", "ea:ea16"))
    with EmbeddedFarm("processes", plans=(plan,), data_dir=data_dir) as started:
        names = [f"kernel-farm-{pid}.*" for pid in started.pids.values()]
        yield started
    groups = [group for name in names for group in Path("/sys/fs/cgroup").rglob(name)]
    assert groups == []


@pytest.fixture(scope="module")
def client(embedded):
    with farm.connect(embedded.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def make_artifact():
    """Make an artifact of kernels ``name(x: int32[1]) -> y: int32[1]``: ``make_artifact({name: IR text})``."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    params = (ParamSpec("x", "int32", (1,), "input"), ParamSpec("y", "int32", (1,), "output"))
    target = Target.parse(TARGET)
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(reloc="pic", opt=1)

    def make(texts):
        modules = []
        for name, text in texts.items():
            module = llvm.parse_assembly(text)
            module.triple = TRIPLE
            module.verify()
            modules.append(
                BuiltModule(
                    kind="device",
                    symbol=name,
                    target=str(target),
                    format="elf-object",
                    format_version=1,
                    requires=target.requires,
                    toolchain="test",
                    signature=Signature(params),
                    data=machine.emit_object(module),
                )
            )
        return assemble(target, modules)

    return make
