"""The fleet under a real Ray: agents connect, come back when killed, and nothing is left at the end.

One start of Ray serves the whole module.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from farm_agents.worker import processes

pytest.importorskip("ray", reason="needs ray: install kernel-farm[cluster]")

FILE = """
[[agent]]
name = "plain"
count = 2
builds = ["ea"]
slots = 0

[[agent]]
name = "board"
slots = 0
devices = ["cpu"]
resources = { shelf = 1 }
"""
LIMIT_S = 120.0


def named(text):
    """Processes below this one whose command line holds `text`."""
    found = []
    for pid in processes.descendants_of(os.getpid()):
        try:
            line = (Path("/proc") / str(pid) / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(pid)
    return found


def folders_of_ray(pid):
    """The folders in which the Ray below a process works: what its processes are told, without the parts of Ray."""
    found = set()
    for below in processes.descendants_of(pid):
        with contextlib.suppress(OSError):
            line = (Path("/proc") / str(below) / "cmdline").read_bytes().decode(errors="replace")
            found |= set(re.findall(r"--log_dir=(.*?/kf-[^/]+)/", line))
    return [Path(folder) for folder in sorted(found)]


def listening(pids):
    """Addresses on which these processes listen for TCP."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            links = [str(fd.readlink()) for fd in (Path("/proc") / str(pid) / "fd").iterdir()]
            inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    found = []
    for table in ("tcp", "tcp6"):
        for line in (Path("/proc/net") / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(address_of(fields[1].partition(":")[0]))
    return found


def address_of(text):
    """The address that /proc/net writes as 32-bit words in the host's byte order."""
    words = [text[i : i + 8] for i in range(0, len(text), 8)]
    data = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    address = ipaddress.ip_address(data)
    return getattr(address, "ipv4_mapped", None) or address


class Fleet:
    """The process of the fleet and the lines that it prints."""

    def __init__(self, process):
        self.process = process

    async def event(self, kind, **facts):
        """Return the next event of this kind with these facts."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                line = await self.process.stdout.readline()
                assert line, "the fleet ended"
                event = json.loads(line)
                if event["event"] == kind and facts.items() <= event.items():
                    return event


@pytest.mark.timeout(400)
def test_fleet_starts_restarts_and_leaves_nothing(tmp_path, make_tracker, monkeypatch):
    monkeypatch.setenv("KERNEL_FARM_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "fleet.toml").write_text(FILE)

    async def main():
        tracker = make_tracker()
        await tracker.start()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "farm_agents.fleet"),
            *("--tracker", f"127.0.0.1:{tracker.port}"),
            *("--file", str(tmp_path / "fleet.toml"), "--work-dir", str(tmp_path / "work")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        fleet = Fleet(process)
        try:
            ready = await fleet.event("ready")
            assert ready["agents"] == ["plain-1", "plain-2", "board"]
            assert ready["seconds"] > 0
            assert sorted(tracker.states) == ["board", "plain-1", "plain-2"]
            (folder,) = folders_of_ray(process.pid)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700  # Ray opens its own to all users
            assert {state.hosted_by for state in tracker.states.values()} == {"ray"}
            await tracker.device_is_good("board")

            addresses = listening(processes.descendants_of(process.pid))
            assert addresses
            assert [a for a in addresses if not a.is_loopback] == []

            before = tracker.states["board"].instance_id
            workers = named("farm_agents.worker")
            (worker,) = [
                pid for pid in workers if parent_of(pid) not in workers
            ]  # not its children
            actor = parent_of(worker)
            os.kill(actor, signal.SIGKILL)
            await fleet.event("restarting", agent="board")
            await fleet.event("connected", agent="board")
            await tracker.until(
                lambda: tracker.states["board"].instance_id != before, limit_s=LIMIT_S
            )
            await tracker.until(lambda: worker not in named("farm_agents.worker"))
            await tracker.device_is_good("board")  # its lock was free again

            tracker.taken.add("plain-1")
            await tracker.notify()
            displaced = await fleet.event("displaced", agent="plain-1")
            assert displaced["cause"] == "agent: another process speaks for it"
            await tracker.until(lambda: tracker.yielding >= 2, limit_s=LIMIT_S)
            tracker.taken.clear()
            await fleet.event("connected", agent="plain-1")
        finally:
            process.stdin.close()
            async with asyncio.timeout(LIMIT_S):
                code = await process.wait()
            await tracker.stop()
        assert code == 0
        assert processes.descendants_of(os.getpid()) == []

    asyncio.run(main())


def parent_of(pid):
    stat = (Path("/proc") / str(pid) / "stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


ABANDON_LIMIT_S = 60.0
"""Far more than it takes, and less than to wait for what has only begun."""


@pytest.mark.parametrize(
    ("stage", "number"), [("gcs_server", signal.SIGINT), ("raylet/raylet", signal.SIGTERM)]
)
def test_fleet_that_is_ended_while_ray_starts_ends_soon_and_leaves_nothing(tmp_path, stage, number):
    (tmp_path / "fleet.toml").write_text(FILE)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "farm_agents.fleet", "--tracker", "127.0.0.1:9"),
            *("--file", str(tmp_path / "fleet.toml"), "--work-dir", str(tmp_path / "work")),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        until = time.monotonic() + LIMIT_S
        while not (named(stage) and folders_of_ray(process.pid)):
            assert process.poll() is None, "the fleet ended"
            assert time.monotonic() < until, "Ray does not start"
            time.sleep(0.01)
        folders = folders_of_ray(process.pid)
        below = processes.descendants_of(process.pid)
        began = time.monotonic()
        process.send_signal(number)
        told, _ = process.communicate(timeout=LIMIT_S)
        assert time.monotonic() - began < ABANDON_LIMIT_S
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, json.loads(told)["event"]) == (0, "stopping")
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
    assert [folder for folder in folders if folder.exists()] == []
