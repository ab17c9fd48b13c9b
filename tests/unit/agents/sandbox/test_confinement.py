"""What an agent does where no sandbox works."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from farm_agents.fleet.fleet import Fleet
from farm_agents.sandbox import confinement as module
from farm_agents.sandbox.cgroups import Hierarchies
from farm_agents.sandbox.confinement import Confinement
from farm_agents.sandbox.mode import Mode

from farm.core.ids import random_id
from farm.errors import InfrastructureError, InvalidFleet


class ManualClock:
    def __init__(self):
        self.time = 100.0

    def now(self):
        return self.time

    def wall(self):
        return self.time


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Make a confinement where there is no bubblewrap; `tries` counts how often it was looked for."""
    tries = []

    def absent():
        tries.append(1)
        raise InfrastructureError("sandbox: bubblewrap is missing (bwrap); install it")

    monkeypatch.setattr(module, "find_bwrap", absent)
    (tmp_path / "cache").mkdir()

    def make_one(mode):
        clock = ManualClock()
        return Confinement(mode, tmp_path, random_id, clock), clock, tries

    return make_one


@pytest.fixture
def shaky(tmp_path, monkeypatch):
    """Make a confinement whose sandbox fails so many tests: ``shaky(mode, failures)``; `tests` counts them."""
    (tmp_path / "cache").mkdir()
    closed = []
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    monkeypatch.setattr(module, "find_bwrap", lambda: Path("/usr/bin/bwrap"))
    monkeypatch.setattr(
        Hierarchies,
        "find",
        staticmethod(lambda: SimpleNamespace(missing=(), close=lambda: closed.append(1))),
    )

    def make_one(mode, failures):
        tests = []

        async def prove(rooms, work_dir, new_id):
            tests.append(rooms)
            if len(tests) <= failures:
                raise InfrastructureError("sandbox: its test did not end in 30 s; see the log")

        monkeypatch.setattr(module, "prove", prove)
        return Confinement(mode, tmp_path, random_id, ManualClock()), tests, closed

    return make_one


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.REQUIRED])
@pytest.mark.parametrize("failures", range(module.TRIES))
def test_test_that_fails_and_then_passes_confines(shaky, caplog, mode, failures):
    confinement, tests, closed = shaky(mode, failures)
    assert asyncio.run(confinement.settle()) is tests[-1]
    assert confinement.labels == {"sandbox": "bwrap"}
    assert (len(tests), closed) == (failures + 1, [])
    assert len(caplog.records) == failures  # each failure is told


def test_auto_settles_for_none_only_after_every_test_failed_and_says_so_aloud(shaky, caplog):
    confinement, tests, closed = shaky(Mode.AUTO, 10**6)
    assert confinement.labels == {"sandbox": "none", "sandbox-none": "untested"}
    assert asyncio.run(confinement.settle()) is None
    assert (len(tests), closed) == (module.TRIES, [1])
    assert confinement.labels == {"sandbox": "none", "sandbox-none": "failed"}
    *warnings, last = caplog.records
    assert [it.levelname for it in warnings] == ["WARNING"] * (module.TRIES - 1)
    assert last.levelname == "ERROR"
    assert "UNCONFINED" in last.getMessage()
    assert "did not end in 30 s" in last.getMessage()


@pytest.mark.parametrize("failures", [module.TRIES, module.TRIES + 2])
def test_auto_that_settled_for_none_is_confined_as_soon_as_a_later_test_passes(
    shaky, monkeypatch, failures
):
    monkeypatch.setattr(module, "LATER_S", 0.001)
    confinement, tests, closed = shaky(Mode.AUTO, failures)

    async def story():
        assert await confinement.settle() is None
        async with asyncio.timeout(60):
            await confinement.keep_testing()  # ends, since there is nothing left to test
        return await confinement.settle()

    assert asyncio.run(story()) is tests[-1]
    assert confinement.labels == {"sandbox": "bwrap"}
    assert len(tests) == failures + 1
    assert len(closed) == failures - module.TRIES + 1  # of each failure that was told


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.NONE])
def test_nothing_is_tested_later_where_there_is_no_bubblewrap_or_none_is_wished(make, mode):
    confinement, _, tries = make(mode)

    async def story():
        await confinement.settle()
        async with asyncio.timeout(60):
            await confinement.keep_testing()

    asyncio.run(story())
    assert len(tries) == (mode is Mode.AUTO)


def test_required_is_never_weakened_by_tests_that_fail(shaky):
    confinement, tests, _ = shaky(Mode.REQUIRED, 10**6)
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="did not end"):
            asyncio.run(confinement.settle())
    assert len(tests) == module.TRIES


def test_auto_goes_without_and_says_so_once(make, caplog):
    confinement, _, tries = make(Mode.AUTO)

    async def twice():
        return [await confinement.settle() for _ in range(2)]

    assert asyncio.run(twice()) == [None, None]
    assert confinement.labels == {"sandbox": "none", "sandbox-none": "absent"}
    assert len(tries) == 1
    (record,) = caplog.records
    assert "bubblewrap is missing" in record.getMessage()
    assert "trusted users only" in record.getMessage()


def test_required_fails_closed_and_tries_again_after_a_while(make):
    confinement, clock, tries = make(Mode.REQUIRED)

    def settle():
        with pytest.raises(InfrastructureError, match="bubblewrap is missing"):
            asyncio.run(confinement.settle())
        return len(tries)

    assert [settle(), settle()] == [1, 1]
    clock.time += module.RETRY_S + 1
    assert settle() == 2
    assert confinement.labels == {"sandbox": "none", "sandbox-none": "absent"}


def test_none_looks_for_nothing(make):
    confinement, _, tries = make(Mode.NONE)
    assert asyncio.run(confinement.settle()) is None
    assert tries == []
    assert confinement.labels == {"sandbox": "none", "sandbox-none": "asked"}


def test_fleet_file_says_what_is_required(tmp_path):
    text = (
        '[[agent]]\nname = "a"\nbuilds = ["ea"]\nsandbox = "required"\n'
        '[[agent]]\nname = "b"\nbuilds = ["ea"]\n'
    )
    fleet = Fleet.parse(text)
    assert [m.spec("127.0.0.1:1", tmp_path).sandbox for m in fleet.members] == [
        Mode.REQUIRED,
        Mode.AUTO,
    ]
    with pytest.raises(InvalidFleet, match="sandbox: wrong value"):
        Fleet.parse('[[agent]]\nname = "a"\nsandbox = true\n')
