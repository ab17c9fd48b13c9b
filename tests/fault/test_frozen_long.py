"""An agent under Ray that stands still for 90 seconds, while another Ray starts a second one of it.

Promised and seen as in `test_frozen`, at full length and with the limits that farms have: the device of the frozen
agent has one opener, its late result is kept as SUPERSEDED or refused as FENCED, the job passes once, and no two runs
overlap.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from farm.client.job import AttemptState
from fault.farms import until

pytestmark = pytest.mark.campaign

FROZEN_S = 90.0
FILE = """
[[agent]]
name = "a1"
slots = 0
devices = ["cpu"]
sandbox = "none"
"""


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.timeout(600)
def test_agent_frozen_for_long_while_ray_starts_a_second(make_farm):
    pytest.importorskip("ray", reason="needs ray: install kernel-farm[cluster]")
    running = make_farm()
    file = running.root / "fleet.toml"
    file.write_text(FILE)
    running.start_tracker(offline_s=10.0)
    client = running.client()
    fleets = [running.start_fleet("fleet-1", file)]
    try:
        until(lambda: running.device(client, "a1-cpu"), running.story, 120)
        running.until_good(client, "a1-cpu")
        job = running.submit(client, 1, ticks=500)
        actor = parent_of(parent_of(running.until_runs(1)))  # the worker's zygote's agent
        began = time.monotonic()
        os.kill(actor, signal.SIGSTOP)
        try:
            fleets.append(running.start_fleet("fleet-2", file))

            def locked():
                device = running.device(client, "a1-cpu")
                return (device.observed, device.health_cause) == (
                    "online",
                    f"locked by pid {actor}",
                )

            until(locked, f"the second agent to find the device taken\n{running.story()}", 120)
            while time.monotonic() < began + FROZEN_S:
                time.sleep(1.0)
                assert locked(), running.story()
            assert running.runs(1) == (1, 1)  # its kernel came to its end, and nobody began anew
        finally:
            os.kill(actor, signal.SIGCONT)
        until(lambda: AttemptState.DONE in [it.state for it in job.status().attempts])
        running.check(client, reruns=True)
        states = [it.state for it in job.status().attempts]
        assert states in (
            [AttemptState.LOST, AttemptState.DONE],
            [AttemptState.SUPERSEDED, AttemptState.DONE],
        )
        assert running.runs(1) == (2, 2)
        until(
            lambda: '"event": "displaced", "agent": "a1"' in fleets[0].log.read_text(),
            running.story(),
        )
    finally:
        for fleet in reversed(fleets):
            fleet.end()
