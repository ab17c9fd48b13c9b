"""A farm of plain processes with one sandboxed agent, and hand-written kernels for this machine's own CPU."""

from __future__ import annotations

import platform
from pathlib import Path

import hostile_kernels
import pytest

import farm
from farm.testing import AgentPlan, EmbeddedFarm

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
    return hostile_kernels.artifact_of
