"""How much one tracker carries: 1,000 agents and 100,000 queued jobs, with TLS, tokens and SQLite FULL, as by default.

Figures: ``submits`` (1/s, acknowledged after commit); ``heartbeats`` (% of one CPU that the tracker uses while all
agents are connected and idle); ``tracker_memory`` (MB, the same moment, every job queued); ``dispatches`` (1/s: jobs
granted, run and reported finished, with all of it committed; the runs take no time, so the tracker is the limit);
``grant_p50`` and ``grant_p99`` (ms from an agent's telling that its device is free to its hearing of the next lease,
while the runs of all devices together ask for half as many jobs a second as were dispatched); ``restart`` (s from
SIGKILL until calls are answered again, with a tenth of the jobs queued) and ``restart_full`` (with all).

The agents are simulated (`support.simulated_agents`), their streams are real. They share the machine with the tracker,
so that all figures are below what it could do alone: standard error says how much of one CPU it had and used.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.figures import emit
from support.simulated_agents import MODELS, Figures, LoadProcesses

from farm.api.v1 import job_pb2, job_pb2_grpc, tensor_pb2
from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.client import Client
from farm.client.job import AttemptState
from farm.core.clock import SystemClock
from farm.core.digest import Digest
from farm.rpc import aio_channel, digest_to_proto
from farm.rpc.blobs import BlobStub, upload
from farm.testing.child import Child
from farm.testing.ports import claim

SUBMITS_AT_ONCE = 64
ACCOUNTS = 5
PRIORITIES = 3
LEAST = 10
"""So many jobs have to end for a figure, however slow the machine is."""
TICKS = os.sysconf("SC_CLK_TCK")
WAIT_S = 300.0

# Where the goals come from. `restart` is promised. A farm of 1,000 devices whose runs take 5 s, with fetching and
# loading, asks for 200 jobs a second. A device that waits for its next job less than 50 ms is idle for one per cent of
# such a run. Half a gigabyte leaves room on the smallest machine that is rented. A tracker that is back within 10 s
# with everything it ever held takes no lease from an agent that was silent only because it was away.
GRANT_LOAD = 0.5
"""The part of the rate of `dispatches` that is asked for while grants are timed; at all of it they only queue."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    agents: int
    jobs: int
    restart_jobs: int
    seconds: float
    processes: int


FULL = Size(agents=1000, jobs=100_000, restart_jobs=10_000, seconds=30.0, processes=2)
SMALL = Size(agents=20, jobs=1500, restart_jobs=100, seconds=1.0, processes=1)


class TrackerProcess:
    """A tracker as users run it, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.address = claim("127.0.0.1:0")
        self._folder = folder
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        """Start it, and return when it answers a call."""
        arguments = ["--data-dir", str(self._folder / "data"), "--listen", self.address]
        self._child = Child("tracker", "farm_tracker", arguments, self._folder)
        wait(lambda: self._serves(), "the tracker does not serve", poll_s=0.01)
        with Client(self.address) as client:
            client.jobs(limit=1)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.end(10.0, now=SystemClock().now, hurry=lambda: False)
            self._child = None

    def memory_mb(self) -> float:
        """Return its resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")

    def cpu_s(self) -> float:
        """Return the CPU time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def _serves(self) -> bool:
        assert self._child is not None
        self._child.check_alive()
        return bool(self._child.new_lines())


def wait(condition: Callable[[], bool], what: str, *, poll_s: float = 0.1) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"tracker_scale: {what} after {WAIT_S:g} s")
        time.sleep(poll_s)


def artifact_of(address: str) -> Digest:
    """Return an artifact whose one function every board runs; nothing here executes it."""
    module = BuiltModule(
        kind="device",
        symbol="kernel",
        target="llvm -mtriple=x86_64-linux-gnu -mcpu=generic",
        format="elf-object",
        format_version=1,
        requires=("cpu-feature:avx2",),
        toolchain="bench 1",
        signature=Signature((ParamSpec("x", "float32", (16,), "input", 64),)),
        data=b"code",
    )

    async def store() -> Digest:
        async with aio_channel(address) as opened:
            return await upload(BlobStub(opened), assemble(module.target, [module]).to_bytes())

    return asyncio.run(store())


async def submit(address: str, artifact: Digest, jobs: range) -> None:
    """Submit jobs, many at a time; each is acknowledged."""
    waiting = iter(jobs)
    async with aio_channel(address) as opened:
        stub = job_pb2_grpc.JobServiceStub(opened)

        async def some() -> None:
            for number in waiting:
                await stub.Submit(request_of(number, artifact))

        await asyncio.gather(*(some() for _ in range(SUBMITS_AT_ONCE)))


def request_of(number: int, artifact: Digest) -> job_pb2.SubmitRequest:
    """Return one job: every model of board, some accounts and priorities, a small array."""
    return job_pb2.SubmitRequest(
        client_key=f"key-{number}",
        account=f"account-{number % ACCOUNTS}",
        priority=number // 7 % PRIORITIES,
        wait_for_device=True,
        run=job_pb2.RunSpec(
            selector=f"kind=cpu,model=m{number % MODELS}",
            artifact=digest_to_proto(artifact),
            symbol="kernel",
            inputs=[tensor_pb2.Tensor(dtype="float32", shape=[16], inline=bytes(64))],
            repeat=10,
        ),
    )


def restart_s(tracker: TrackerProcess) -> float:
    """Kill the tracker and start it again; return how long nobody was answered."""
    began = time.perf_counter()
    tracker.kill()
    tracker.start()
    print(f"restart: tracker_cpu_s={tracker.cpu_s():.2f}", file=sys.stderr, flush=True)
    return time.perf_counter() - began


def measure(size: Size, folder: Path) -> None:
    """Measure everything with one tracker."""
    tracker = TrackerProcess(folder)
    try:
        tracker.start()
        artifact = measure_queue(size, tracker)
        with LoadProcesses(tracker.address, size.agents, size.processes) as load:
            finished = measure_agents(size, tracker, load, artifact)
            emit_s("restart_full", restart_s(tracker), "<= 10")
        check_kept(tracker, finished)
    finally:
        tracker.stop()


def measure_queue(size: Size, tracker: TrackerProcess) -> Digest:
    """Fill the queue, and restart on the way; return the artifact that every job runs."""
    artifact = artifact_of(tracker.address)
    asyncio.run(submit(tracker.address, artifact, range(size.restart_jobs)))
    emit_s("restart", restart_s(tracker), "<= 5")
    rest = range(size.restart_jobs, size.jobs)
    began, cpu_s = time.perf_counter(), tracker.cpu_s()
    asyncio.run(submit(tracker.address, artifact, rest))
    emit_rate("submits", len(rest), began, tracker, cpu_s, "none")
    return artifact


def measure_agents(
    size: Size, tracker: TrackerProcess, load: LoadProcesses, artifact: Digest
) -> list[str]:
    """Let the agents work; return the jobs whose end was acknowledged."""
    wait(lambda: load.figures().online == size.agents, "not all agents are connected")
    began, cpu_s = time.perf_counter(), tracker.cpu_s()
    time.sleep(size.seconds / 2)
    busy = (tracker.cpu_s() - cpu_s) / (time.perf_counter() - began)
    share = 100 * max(busy, 1 / TICKS)
    emit("heartbeats", share, "%", goal="<= 25", samples=size.agents, lower_is_better=True)
    memory = tracker.memory_mb()
    emit("tracker_memory", memory, "MB", goal="<= 512", samples=1, lower_is_better=True)
    load.heal()
    time.sleep(size.seconds / 3)
    finished = load.figures().finished
    began, cpu_s = time.perf_counter(), tracker.cpu_s()
    done = collect(load, size.seconds).finished
    finished += done
    rate = emit_rate("dispatches", len(done), began, tracker, cpu_s, ">= 200")
    run_s = size.agents / max(1.0, GRANT_LOAD * rate)
    settle_s, seen_s = 3 * run_s, max(size.seconds, run_s)  # first the runs have to end out of step
    asked = size.agents + int(2 * GRANT_LOAD * rate * (settle_s + seen_s)) + LEAST
    lacking = asked - (size.jobs - len(finished))
    load.run_for(run_s)  # before the rest is submitted, or all of it would be done by then
    asyncio.run(submit(tracker.address, artifact, range(size.jobs, size.jobs + max(0, lacking))))
    time.sleep(settle_s)
    finished += load.figures().finished
    seen = collect(load, seen_s)
    emit_grants(seen.grant_s)
    return finished + seen.finished


def collect(load: LoadProcesses, seconds: float) -> Figures:
    """Return what the agents see in some time, longer if they see hardly anything."""
    time.sleep(seconds)
    seen = load.figures()

    def is_enough() -> bool:
        more = load.figures()
        seen.finished += more.finished
        seen.grant_s += more.grant_s
        return min(len(seen.finished), len(seen.grant_s)) >= LEAST

    if min(len(seen.finished), len(seen.grant_s)) < LEAST:
        wait(is_enough, f"fewer than {LEAST} jobs ended")
    return seen


def check_kept(tracker: TrackerProcess, finished: list[str]) -> None:
    """Check that the killed tracker lost no result that it had acknowledged.

    An agent is told to drop a result also if it came too late to count, after its attempt was lost.
    """
    with Client(tracker.address) as client:
        for job_id in finished[:: max(1, len(finished) // 200)]:
            info = client.job(job_id).status()
            late = (AttemptState.LOST, AttemptState.SUPERSEDED)
            if info.verdict != "pass" and not any(it.state in late for it in info.attempts):
                raise SystemExit(f"tracker_scale: {job_id} was acknowledged and is {info.state}")


def emit_s(name: str, seconds: float, goal: str) -> None:
    """Print a figure in seconds."""
    emit(name, seconds, "s", goal=goal, samples=1, lower_is_better=True)


def emit_rate(
    name: str, count: int, began: float, tracker: TrackerProcess, cpu_s: float, goal: str
) -> float:
    """Print and return how many a second; on standard error, how much of one CPU the tracker had."""
    elapsed_s = time.perf_counter() - began
    emit(name, count / elapsed_s, "1/s", goal=goal, samples=count, lower_is_better=False)
    share = (tracker.cpu_s() - cpu_s) / elapsed_s
    each_ms = 1e3 * (tracker.cpu_s() - cpu_s) / max(1, count)
    print(f"{name}: tracker_cpu={share:.2f} ms_each={each_ms:.3f}", file=sys.stderr, flush=True)
    return count / elapsed_s


def emit_grants(grant_s: list[float]) -> None:
    """Print percentiles of how long free devices waited for a job."""
    ordered = sorted(1e3 * it for it in grant_s)
    for name, part, goal in (("grant_p50", 0.50, "none"), ("grant_p99", 0.99, "<= 50")):
        value = ordered[min(len(ordered) - 1, int(part * len(ordered)))]
        emit(
            name,
            value,
            "ms",
            goal=goal,
            samples=len(ordered),
            lower_is_better=True,
            spread=ordered,
        )


def main() -> None:
    """Measure, in full or just enough to see that it works."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few seconds: see that it works")
    for name in ("agents", "jobs", "seconds"):
        parser.add_argument(f"--{name}", type=int, help=f"other than {getattr(FULL, name):g}")
    chosen = parser.parse_args()
    base = SMALL if chosen.small else FULL
    size = Size(
        chosen.agents or base.agents,
        chosen.jobs or base.jobs,
        min(base.restart_jobs, chosen.jobs or base.jobs),
        chosen.seconds or base.seconds,
        base.processes,
    )
    with tempfile.TemporaryDirectory(prefix="farm-scale-") as folder:
        measure(size, Path(folder))


if __name__ == "__main__":
    main()
