"""Clients and commands against a small server in this process."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from small_tracker.jobs import TARGET
from small_tracker.server import SmallTracker

from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.cli import main
from farm.client import Client
from farm.errors import InfrastructureError

SIGNATURE = Signature(
    (ParamSpec("x", "int32", (4,), "input"), ParamSpec("y", "int32", (4,), "output"))
)
LIMIT_S = 120.0


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


@pytest.fixture
def tracker():
    small = SmallTracker()
    yield small
    small.stop()


@pytest.fixture
def client(tracker):
    with Client(tracker.address) as made:
        made.away_s = 60.0
        yield made


@pytest.fixture
def artifact():
    """Two functions for a CPU; nobody runs their code."""
    modules = [
        BuiltModule(
            kind="device",
            symbol=symbol,
            target=TARGET,
            format="elf-object",
            format_version=1,
            requires=("arch:x86_64",),
            toolchain="none 1",
            signature=SIGNATURE,
            data=symbol.encode(),
        )
        for symbol in ("double", "crash")
    ]
    return assemble(TARGET, modules)


@pytest.fixture
def large_artifact():
    """A function whose arrays are too large to travel inside a message."""
    params = (ParamSpec("x", "int32", (1 << 17,), "input"), ParamSpec("y", "int32", (4,), "output"))
    module = BuiltModule(
        kind="device",
        symbol="large",
        target=TARGET,
        format="elf-object",
        format_version=1,
        requires=("arch:x86_64",),
        toolchain="none 1",
        signature=Signature(params),
        data=b"large",
    )
    return assemble(TARGET, [module])


@pytest.fixture
def x():
    return np.arange(4, dtype=np.int32)


@pytest.fixture
def until():
    """Wait until a condition holds: ``until(lambda: ...)``."""

    def wait(condition):
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    return wait


@pytest.fixture
def later(until):
    """Do something in a thread as soon as a condition holds: ``later(lambda: ..., function, ...)``."""
    threads = []

    def start(condition, function, *arguments, **options):
        def wait():
            until(condition)
            function(*arguments, **options)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(2 * LIMIT_S)


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path, tracker):
    """Run a command line in an empty folder, with the small server as its tracker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FARM_DEBUG", raising=False)
    monkeypatch.setenv("FARM_TRACKER", tracker.address)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FARM_LEASE_TOKEN", raising=False)

    def run(*arguments):
        code = main.run([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def saved(artifact, tmp_path):
    path = tmp_path / "kernels.farm"
    artifact.save(path)
    return path


@pytest.fixture
def stopping():
    """What a tracker that stops answers."""
    return InfrastructureError("tracker: it is being stopped; try again when it is back")
