"""Run attempts on an agent's side: what the core commands about runs, and the outbox on its disk.

Owns: one attempt from order to outcome on the virtual clock; the records that survive the agent's process.
Does not own: which attempts run and their deadlines (`farm_agents.state.runs`, real), the worker's process (`host`).

`Runner` stands for `farm_agents.runs.Runner` (same order: record that it began, fetch, load, run, end the worker,
record the outcome, have its blobs in the store, say so), `Record` for a file of `farm_agents.outbox.Outbox`.

Invariant: an outcome is recorded before the tracker can hear of it; a process that dies leaves the record of before or
of after.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from farm_agents.failures import failed_from
from farm_agents.state.messages import RunEnded, RunLogged, RunMoved
from farm_agents.state.run import KEEP_LIMIT_S, Run, RunOrder, RunPhase, RunResult

from farm.core.digest import digest_of
from farm.core.ids import AttemptId, DeviceId, Epoch, JobId, LeaseId
from farm.errors import Cancelled, DeviceLost, InfrastructureError, KernelCrashed, TimeLimit

if TYPE_CHECKING:
    from farm_agents.state.model import Failed

    from farm.core.digest import Digest
    from simulation.agent import Agent, Served
    from simulation.world import Timer

MUCH = "with blobs"


@dataclass(frozen=True, slots=True)
class Record:
    """What the disk has of an attempt; no outcome: it began."""

    attempt_id: AttemptId
    epoch: Epoch
    outcome: RunResult | Failed | None = None
    log: tuple[Digest, ...] = ()
    has_blobs: bool = False


@dataclass(eq=False, slots=True)
class Running:
    """One attempt being carried out, or one of an earlier process being delivered."""

    record: Record
    order: RunOrder | None = None
    served: Served | None = None
    timer: Timer | None = None
    is_killed: bool = False
    is_stopping: bool = False
    is_kept: bool = False


def restored(record: Record, now: float) -> Run:
    """Return an attempt of an earlier process as the core takes it (`farm_agents.runs._restored`)."""
    attempt_id, epoch, nothing = record.attempt_id, record.epoch, ""
    order = RunOrder(
        attempt_id, JobId(nothing), LeaseId(nothing), DeviceId(nothing), epoch, 0.0, b""
    )
    if record.has_blobs and record.outcome is not None:
        return Run(order, RunPhase.STORING, deadline=now + KEEP_LIMIT_S)
    lost = failed_from(DeviceLost(f"run {attempt_id}: its agent died; submit it again"))
    return Run(order, RunPhase.FINISHED, outcome=record.outcome or lost)


class Runner:
    """Carries out what the core commands about runs."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._running: dict[AttemptId, Running] = {}

    @property
    def outbox(self) -> dict[AttemptId, Record]:
        """The records on the disk of the agent's host: whichever process speaks for the agent sees them."""
        return self._agent.site.host.outboxes.setdefault(self._agent.site.agent_id, {})

    def load(self) -> list[Run]:
        """Return what earlier processes left; those whose blobs the store may lack are delivered."""
        runs = [restored(it, self._agent.now()) for it in self.outbox.values()]
        for run in runs:
            if run.phase is RunPhase.STORING:
                running = Running(self.outbox[run.order.attempt_id], is_kept=True)
                self._running[run.order.attempt_id] = running
                running.timer = self._agent.later(0.05, self._deliver, running)
        return runs

    @property
    def is_delivering(self) -> bool:
        """Whether a result waits for the store."""
        return any(it.is_kept for it in self._running.values())

    def start(self, order: RunOrder, served: Served | None) -> None:
        """Carry out `StartRun`."""
        running = Running(Record(order.attempt_id, order.epoch), order, served)
        self._running[order.attempt_id] = running
        running.timer = self._agent.later(0.002, self._begin, running)

    def kill(self, attempt_id: AttemptId) -> None:
        """Carry out `KillRun`: RunEnded follows when the worker is gone."""
        running = self._running.get(attempt_id)
        if running is None or running.is_killed:
            return
        running.is_killed = True
        if running.timer is not None:
            running.timer.cancel()
        if running.is_kept:
            self._cancelled(running)
        elif not running.is_stopping:
            self._stop_worker(running)

    def drop(self, attempt_id: AttemptId) -> None:
        """Carry out `DropRun`."""
        self.outbox.pop(attempt_id, None)

    def _then(self, running: Running, delay_s: float, call: object) -> None:
        running.timer = self._agent.later(delay_s, call, running)  # type: ignore[arg-type]

    def _begin(self, running: Running) -> None:
        if self._agent.site.host.disk_full:
            self._fail(running, InfrastructureError("outbox: the disk is full; free it"))
            return
        self.outbox[running.record.attempt_id] = running.record
        self._fetch(running)

    def _fetch(self, running: Running) -> None:
        if not self._agent.reaches_tracker:
            self._then(running, 0.3, self._fetch)
            return
        self._agent.apply(RunMoved(running.record.attempt_id, RunPhase.LOADING))
        self._then(running, self._agent.world.between(0.01, 0.3), self._load)

    def _load(self, running: Running) -> None:
        if self._worker_is_gone(running):
            self._fail(running, InfrastructureError("worker: ended from outside; try again"))
            return
        self._agent.apply(RunMoved(running.record.attempt_id, RunPhase.RUNNING))
        assert running.order is not None
        name, run_s = decoded(running.order.run)
        self._then(running, running.order.limit_s if name == "hang" else run_s, self._ran)

    def _ran(self, running: Running) -> None:
        order = running.order
        assert order is not None
        attempt_id = order.attempt_id
        name, _ = decoded(order.run)
        if self._worker_is_gone(running):
            self._fail(running, InfrastructureError("worker: ended from outside; try again"))
            return
        if self._agent.world.chance(0.03) and self._agent.farm.plan.is_flaky:
            self._fail(running, InfrastructureError("worker: ended from outside; try again"))
            return
        outcome: RunResult | Failed = RunResult(f"result of {name}".encode())
        if running.served is not None and name in ("crash", "hang"):
            running.served.crashed = True
        if name == "crash":
            outcome = failed_from(KernelCrashed(f"{name}: SIGSEGV; fix the kernel"))
        elif name == "hang":
            outcome = failed_from(TimeLimit(f"{name}: ran past its limit; fix the kernel"))
        printed = tuple(digest_of(f"{attempt_id} {it}".encode()) for it in range(2))
        if self._agent.reaches_tracker:
            self._agent.apply(RunLogged(attempt_id, printed[:1], is_cut=False))
        self._agent.farm.checks.ran(order, outcome)
        much = self._agent.world.chance(0.5)
        running.record = replace(running.record, outcome=outcome, log=printed, has_blobs=much)
        if isinstance(outcome, RunResult):
            self._agent.apply(RunMoved(attempt_id, RunPhase.ENDING))
        self._stop_worker(running)

    def _fail(self, running: Running, error: InfrastructureError) -> None:
        running.record = replace(running.record, outcome=failed_from(error))
        self._agent.apply(RunMoved(running.record.attempt_id, RunPhase.ENDING))
        self._stop_worker(running)

    def _worker_is_gone(self, running: Running) -> bool:
        process = running.served.process if running.served is not None else None
        return process is None or process.killed_at is not None

    def _stop_worker(self, running: Running) -> None:
        """End the worker and wait for the proof (`Session.stop`)."""
        running.is_stopping = True
        served = running.served
        if served is not None and served.process is not None:
            served.rig.kill(served.process)
            if served.process in served.rig.processes:
                self._agent.later(0.1, self._stop_worker, running)
                return
        if running.is_killed:
            self._cancelled(running)
        else:
            self._keep(running)

    def _keep(self, running: Running) -> None:
        if self._agent.site.host.disk_full:
            full = failed_from(InfrastructureError("outbox: the disk is full; free it"))
            running.record = replace(running.record, outcome=full, has_blobs=False)
        else:
            self.outbox[running.record.attempt_id] = running.record
        running.is_kept = True
        self._agent.apply(RunMoved(running.record.attempt_id, RunPhase.STORING))
        self._then(running, 0.01, self._deliver)

    def _deliver(self, running: Running) -> None:
        if running.is_killed:
            return
        if running.record.has_blobs and not self._agent.reaches_tracker:
            self._then(running, 0.3, self._deliver)
            return
        record = running.record
        assert record.outcome is not None
        self._running.pop(record.attempt_id, None)
        self._agent.apply(RunEnded(record.attempt_id, record.outcome, 1.0, 2.0, record.log))

    def _cancelled(self, running: Running) -> None:
        attempt_id = running.record.attempt_id
        self._running.pop(attempt_id, None)
        error = failed_from(Cancelled(f"run {attempt_id}: was killed; submit it again"))
        self._agent.apply(RunEnded(attempt_id, error, 1.0, 2.0))


def encoded(name: str, run_s: float) -> bytes:
    """Return what stands for a RunSpec: the cores never look into it."""
    return f"{name} {run_s}".encode()


def decoded(run: bytes) -> tuple[str, float]:
    """Return the name and the length of what is run."""
    name, run_s = run.decode().split()
    return name, float(run_s)
