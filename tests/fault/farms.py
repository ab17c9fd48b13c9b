"""One farm of plain processes that can be killed, frozen and started again, each by itself.

Owns: its processes and folders, evidence of what its kernels did. Does not own: what is done to it.

Invariant: after `close` none of its processes is left, whatever state it was in.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from farm_agents.worker import processes

import farm
from farm.client.job import Outcome, Verdict
from farm.errors import FarmError
from farm.testing import tether
from farm.testing.ports import claim
from fault import witness

LIMIT_S = 120.0


def until(condition, what="", limit_s=LIMIT_S):
    """Wait until ``condition()`` is true, and return its value."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what or condition}"
        time.sleep(0.01)
    return value


def lives(pid):
    """Tell whether a process has not ended, or was not waited for yet."""
    return Path(f"/proc/{pid}").exists()


class Process:
    """One process of a farm, with its log."""

    def __init__(self, command, log, environment, prefix=()):
        self.log = log
        self.frozen = False
        self.mounts = bool(prefix) and "unshare" in prefix[0]
        tethered = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid())]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*tethered, *prefix, sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
            )

    @property
    def pid(self):
        return self._process.pid

    @property
    def ended(self):
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, limit_s=LIMIT_S):
        return self._process.wait(limit_s)

    def freeze(self):
        self.frozen = True
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self):
        self.frozen = False
        os.kill(self.pid, signal.SIGCONT)

    def kill(self):
        """SIGKILL; return when it and everything below it is gone."""
        below = [] if self.ended is not None else processes.descendants_of(self.pid)
        self._process.kill()
        self._process.wait()
        until(lambda: not any(map(lives, below)), "what was below it")

    def end(self, limit_s=LIMIT_S):
        """SIGTERM, then as `kill`."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(limit_s)
        self.kill()

    def workers(self, name="farm-session"):
        """Every process below it that works for somebody."""
        found = []
        for pid in processes.descendants_of(self.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(pid)
        return found


class Farm:
    """A tracker, its agents, a client; each agent has at most one device.

    Parameters
    ----------
    root
        Folder of everything.
    host
        Where the tracker listens.
    """

    def __init__(self, root, host="127.0.0.1", address=""):
        self.root = root
        self.address = address or claim(f"{host}:0")
        self.tracker = None
        self.agents = {}
        self.processes = []
        self.clients = []
        self.jobs = {}
        self.artifact = witness.artifact(len(str(self.folder("a1"))))

    def folder(self, name):
        return self.root / "agents" / name

    def view(self, name):
        """Where an agent's folder is seen from here: it may be on a disk that only its process has mounted."""
        process = self.agents[name]
        if process.mounts and process.ended is None:
            return Path(f"/proc/{process.pid}/root{self.folder(name)}")
        return self.folder(name)

    # Processes

    def start_tracker(self, crash="", offline_s=10.0, arguments=("--plaintext",), prefix=()):
        """Start it, in place of one that has ended."""
        command = ["farm_tracker", "--data-dir", str(self.root / "tracker")]
        command += ["--listen", self.address, "--offline-after", str(offline_s), *arguments]
        environment = {"FARM_TRACKER_CRASH": crash}
        self.tracker = self._start(command, self.root / "tracker.log", environment, prefix)
        return self.tracker

    def start_agent(self, name, *devices, builds=(), slots=1, crash="", tracker="", prefix=()):
        """Start one, in place of one of its name that has ended."""
        assert len(name) == 2, "witnesses need folders of one length"
        command = ["farm_agents", "--tracker", tracker or self.address, "--agent-id", name]
        command += ["--work-dir", str(self.folder(name)), "--sandbox", "none"]
        command += ["--builds", ",".join(builds), "--slots", str(slots)]
        for device in devices:
            command += ["--device", device]
        environment = {
            "FARM_AGENT_CRASH": crash,
            "KERNEL_FARM_RUNTIME_DIR": str(self.root / "runtime"),
        }
        self.agents[name] = self._start(command, self.root / f"{name}.log", environment, prefix)
        return self.agents[name]

    def start_fleet(self, name, file):
        """Start a Ray of its own with the agents of a fleet file; their folders are those of plain agents."""
        command = ["farm_agents.fleet", "--tracker", self.address, "--file", str(file)]
        command += ["--work-dir", str(self.root / "agents")]
        environment = {"KERNEL_FARM_RUNTIME_DIR": str(self.root / "runtime")}
        return self._start(command, self.root / f"{name}.log", environment, ())

    def _start(self, command, log, environment, prefix):
        process = Process(command, log, environment, prefix)
        self.processes.append(process)
        return process

    def end_agents(self):
        """Kill all agents."""
        for process in self.agents.values():
            process.kill()

    def close(self):
        """Kill everything."""
        for client in self.clients:
            client.close()
        for process in reversed(self.processes):
            process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # Clients

    def client(self):
        """A client of its own, as soon as the tracker answers."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                client = farm.connect(self.address)
                break
            except FarmError:
                assert time.monotonic() < deadline, self.story()
                time.sleep(0.02)
        self.clients.append(client)
        return client

    def device(self, client, device_id):
        return {it.device_id: it for it in client.devices()}.get(device_id)

    def until_good(self, client, *device_ids):
        """Wait until devices can be given out."""

        def good():
            found = {it.device_id: it for it in client.devices()}
            return all(
                (it := found.get(key))
                and (it.observed, it.health, it.use) == ("online", "good", "idle")
                for key in device_ids
            )

        until(good, f"devices {device_ids}\n{self.story()}")

    def submit(self, client, number, ticks=2, *, prints=False, **options):
        """Submit a job of `witness` under a key; it is remembered as acknowledged once this returns."""
        values = np.array([number, ticks, int(prints)], np.int32)
        key = f"job-{number}"
        options = {"selector": "kind=cpu", "limit_s": 120.0, **options}
        job = client.submit(self.artifact, "witness", [values], client_key=key, **options)
        self.jobs[number] = job.job_id
        return job

    # Evidence

    def entries(self):
        """What the kernels of all agents wrote, by agent."""
        folders = {it.name: it for it in (self.root / "agents").glob("*")}
        return {
            name: witness.read(self.view(name) if name in self.agents else folder)
            for name, folder in folders.items()
        }

    def runs(self, number):
        """How often a job's kernel began, and came to its end, on whatever device."""
        told = [witness.runs_of(entries, number) for entries in self.entries().values()]
        return sum(it[0] for it in told), sum(it[1] for it in told)

    def until_runs(self, number):
        """Wait until the kernel of a job runs; return the process it runs in."""

        def started():
            for entries in self.entries().values():
                for it in entries:
                    if (it.kind, it.job) == (witness.START, number):
                        return it.pid
            return None

        return until(started, f"job {number} to run\n{self.story()}")

    def check(self, client, *, reruns=False):
        """Check that every job acknowledged since the last check ended right, once, and that no two runs overlapped.

        Parameters
        ----------
        reruns
            Whether a run may have been lost with its agent and made again.
        """
        for number, job_id in self.jobs.items():
            info = client.job(job_id).wait(LIMIT_S)
            story = f"job {number}: {info}\n{self.story()}"
            assert (info.outcome, info.verdict) == (Outcome.COMPLETED, Verdict.PASS), story
            assert client.job(job_id).result(LIMIT_S).outputs[0].tolist() == [number + 1]
            assert [it.state.value for it in info.attempts].count("done") == 1, story
            began, ended = self.runs(number)
            assert began >= 1, story
            assert reruns or (began, ended) == (1, 1), story
        for entries in self.entries().values():
            assert witness.overlaps(entries) == []
        known = [it.client_key for it in client.jobs(include_ended=True, limit=1000)]
        assert all(known.count(f"job-{number}") == 1 for number in self.jobs)
        self.jobs.clear()

    def story(self):
        """The ends of all logs."""
        logs = sorted(self.root.glob("*.log"))
        return "\n".join(f"--- {it.name}\n{it.read_text(errors='replace')[-3000:]}" for it in logs)
