"""Rooms of sandboxes by themselves: what is told of one that falls."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from farm_agents.sandbox.bubblewrap import KEEPER, find_bwrap, make_view
from farm_agents.sandbox.cgroups import CONTROLLERS, Hierarchies
from farm_agents.sandbox.limits import Limits
from farm_agents.sandbox.running import Rooms
from farm_agents.worker import processes

from farm.errors import InfrastructureError


@pytest.fixture
def rooms(tmp_path):
    """Rooms without control groups, which are not what is tested here."""
    try:
        bwrap = find_bwrap()
    except InfrastructureError as error:
        pytest.skip(f"needs bubblewrap: {error}")
    (tmp_path / "cache").mkdir()
    limits = Limits.default()
    view = make_view(tmp_path / "cache", limits.scratch_bytes)
    return Rooms(bwrap, view, limits, Hierarchies((), CONTROLLERS))


async def opened(rooms):
    try:
        return await rooms.open("room")
    except InfrastructureError as error:
        pytest.skip(f"needs a host where bubblewrap makes rooms: {error}")


@pytest.mark.parametrize("is_killed", [False, True])
def test_room_whose_keeper_is_killed_falls_and_no_other(rooms, is_killed):
    async def story():
        room = await opened(rooms)
        try:
            name = Path(KEEPER).name
            below = processes.descendants_of(room.process.pid)
            (keeper,) = [it for it in below if Path(f"/proc/{it}/comm").read_text().strip() == name]
            if is_killed:
                os.kill(keeper, signal.SIGKILL)
                async with asyncio.timeout(60):
                    while room.process.poll() is None:
                        await asyncio.sleep(0.01)
        finally:
            await room.end()
        return room.fell

    assert asyncio.run(story()) is is_killed
