"""One agent in this process, against a small tracker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from pathlib import Path
from types import SimpleNamespace

import hostile_kernels
import pytest
from farm_agents.agent import run_agent
from farm_agents.sandbox.mode import Mode
from farm_agents.spec import AgentSpec, parse_devices
from farm_agents.worker import processes
from small_agents_tracker import Tracker

from farm.api.v1 import agent_pb2, build_pb2
from farm.core.wire import digest_to_proto
from farm.errors import Fenced


def zygotes():
    """The zygotes below this process, the one that tests the sandbox apart."""
    children = processes.children_of(os.getpid())
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in children}
    return [pid for pid in children if {b"session", b"build"} & set(words[pid])]


def workers(top=None):
    """Every process below one (this one) that works for somebody, or that one of these has started."""
    return called(top, "farm-session", "farm-build")


def spares():
    """Every process below this one that waits in a sandbox to work for somebody."""
    return called(None, "farm-spare")


def called(top, *names):
    """Every process below one (this one) that has one of these names."""
    found = []
    for pid in processes.descendants_of(top or os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() in names:
                found.append(pid)
    return found


@pytest.fixture
def tree():
    """The processes of the agent that runs in this one: zygotes, workers, spares."""
    return SimpleNamespace(zygotes=zygotes, workers=workers, spares=spares)


@pytest.fixture
def make_tracker():
    """The class of the small tracker."""
    return Tracker


@pytest.fixture
def run_farm(tmp_path, monkeypatch):
    """Run a story against one agent: ``run_farm(story, devices=..., builds=..., slots=...)``."""
    monkeypatch.setenv("KERNEL_FARM_RUNTIME_DIR", str(tmp_path / "runtime"))

    def run(story, devices=("cpu",), builds=(), slots=1, sandbox="auto", **options):
        async def main():
            others = set(processes.children_of(os.getpid()))  # of farms that tests share
            tracker = Tracker()
            await tracker.start()
            stop = asyncio.Event()
            spec = AgentSpec(
                tracker=f"127.0.0.1:{tracker.port}",
                agent_id="a1",
                builds=tuple(builds),
                slots=slots,
                devices=parse_devices(devices, "a1"),
                work_dir=tmp_path / "a1",
                sandbox=Mode(sandbox),
                **options,
            )
            agent = asyncio.create_task(run_agent(spec, stop))
            telling = asyncio.create_task(story(tracker, spec))
            try:
                await asyncio.wait({agent, telling}, return_when=asyncio.FIRST_COMPLETED)
                if not telling.done():
                    agent.result()  # raises what ended it
                    raise AssertionError("the agent ended before the story")
                telling.result()
            finally:
                telling.cancel()
                stop.set()
                with contextlib.suppress(Fenced):
                    await agent
                await tracker.stop()
            assert set(processes.children_of(os.getpid())) <= others

        asyncio.run(main())

    return run


@pytest.fixture(scope="session")
def hostile():
    """An artifact of the hostile kernels."""
    if platform.machine() != "x86_64":
        pytest.skip("needs an x86-64 host: the kernels make its system calls")
    return hostile_kernels.artifact()


@pytest.fixture(scope="session")
def build_task():
    """Make a BuildTask: ``build_task(tracker, attempt_id, function, target)``."""

    def make(tracker, attempt_id, function_bytes, target, limit_s=60.0, symbol="f"):
        digest = tracker.blobs.put(function_bytes)
        item = build_pb2.BuildItem(
            kind=build_pb2.ITEM_KIND_DEVICE,
            target=target,
            symbol=symbol,
            function=digest_to_proto(digest),
        )
        return agent_pb2.BuildTask(attempt_id=attempt_id, item=item, limit_s=limit_s)

    return make
