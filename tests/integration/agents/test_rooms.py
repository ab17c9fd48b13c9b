"""Rooms of sandboxes by themselves: what is told of one that falls."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
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
    # Asked of bubblewrap alone: a room that cannot be opened where it works is a fault.
    probe = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a host where bubblewrap may make namespaces")
    (tmp_path / "cache").mkdir()
    limits = Limits.default()
    view = make_view(tmp_path / "cache", limits.scratch_bytes)
    return Rooms(bwrap, view, limits, Hierarchies((), CONTROLLERS))


@pytest.mark.parametrize("is_killed", [False, True])
def test_room_whose_keeper_is_killed_falls_and_no_other(rooms, is_killed):
    async def story():
        room = await rooms.open("room")
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
