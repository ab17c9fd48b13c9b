"""What an agent does where no sandbox works."""

from __future__ import annotations

import asyncio

import pytest
from farm_agents.fleet.fleet import Fleet
from farm_agents.sandbox import confinement as module
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


def test_auto_goes_without_and_says_so_once(make, caplog):
    confinement, _, tries = make(Mode.AUTO)

    async def twice():
        return [await confinement.settle() for _ in range(2)]

    assert asyncio.run(twice()) == [None, None]
    assert confinement.labels == {"sandbox": "none"}
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
    assert confinement.labels == {"sandbox": "none"}


def test_none_looks_for_nothing(make):
    confinement, _, tries = make(Mode.NONE)
    assert asyncio.run(confinement.settle()) is None
    assert tries == []


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
