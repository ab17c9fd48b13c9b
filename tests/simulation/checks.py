"""What must hold after every step, of the cores and of the ground truth beside them.

Owns: the invariants and what was seen so far that they need. Does not own: making anything happen.

Invariant: a check only looks; it changes nothing and takes no random number.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from farm_agents.state import next_deadline
from farm_agents.state.model import ACTIVE_PHASES
from farm_agents.state.model import Use as AgentUse
from farm_agents.state.run import RunPhase, RunResult
from farm_tracker.state import deadlines, violations
from farm_tracker.state.commands import GrantLease, JobAccepted, PushDesired
from farm_tracker.state.model import POISON_DEVICES
from farm_tracker.state.run import Outcome, RunAttemptState
from farm_tracker.state.state import Changes
from farm_tracker.state.work import AttemptState

from farm.errors import (
    BuildFailed,
    InfrastructureError,
    InvalidInput,
    KernelFailed,
    TimeLimit,
    error_class,
)
from simulation.accounts import AccountChecks
from simulation.world import Violation

if TYPE_CHECKING:
    from farm_agents.state.run import RunOrder
    from farm_tracker.state.commands import Command
    from farm_tracker.state.events import Event
    from farm_tracker.state.model import Lease
    from farm_tracker.state.run import RunAttempt, RunJob
    from farm_tracker.state.state import Step
    from farm_tracker.state.work import Attempt

    from farm.core.ids import JobId, LeaseId
    from simulation.agent import Agent
    from simulation.farm import Farm
    from simulation.host import Process, Rig
    from simulation.tracker import Tracker

PARTS = tuple(it.name for it in fields(Changes))
USER_FAULTS = (KernelFailed, TimeLimit, InvalidInput, BuildFailed)


def fail(name: str, text: str, *values: object) -> None:
    """Report that an invariant does not hold."""
    raise Violation(name, text % values if values else text)


class Checks:
    """The invariants of one farm."""

    def __init__(self, farm: Farm) -> None:
        self.farm = farm
        self.granted: dict[str, int] = {}
        self.promised: dict[LeaseId, Lease] = {}
        self.compiled_attempts: set[str] = set()
        self.outcomes: dict[str, tuple[object, ...]] = {}
        self.user_faults: dict[str, str] = {}
        self.really_ran: dict[str, list[tuple[str, object]]] = {}
        self.jobs_of_keys: dict[str, JobId] = {}
        self.verdicts: dict[str, tuple[object, ...]] = {}
        self.ever_stored: set[LeaseId] = set()
        self.accounts = AccountChecks(farm.disk)

    # The ground truth

    def process_starts(self, rig: Rig, process: Process, agent: Agent) -> None:
        """One epoch at a time on a device, each higher than the last, none that was not committed."""
        for other in rig.processes:
            if other.epoch != process.epoch or other.owner != process.owner:
                fail(
                    "overlap",
                    "%s: epoch %d starts (%s) while epoch %d still runs (%s)",
                    rig.device_id,
                    process.epoch,
                    process.owner,
                    other.epoch,
                    other.owner,
                )
        if process.epoch < rig.last_epoch:
            fail("epoch", "%s: %d after %d", rig.device_id, process.epoch, rig.last_epoch)
        if process.epoch <= rig.cleaned_epoch:
            fail("epoch", "%s: %d starts after it was cleaned", rig.device_id, process.epoch)
        if rig.holder is not agent:
            fail("lock", "%s: %s runs without the lock", rig.device_id, process.owner)
        truth = self.farm.disk.truth
        device = truth.devices.get(rig.device_id)  # type: ignore[call-overload]
        if process.epoch > (truth.epoch_floor if device is None else device.epoch):
            fail("commit", "%s: epoch %d runs but is not stored", rig.device_id, process.epoch)

    def compiled(self, attempt_id: str) -> None:
        """Note that an attempt really compiled."""
        self.compiled_attempts.add(attempt_id)

    def ran(self, order: RunOrder, outcome: object) -> None:
        """Note that the kernel of an attempt really ran to that end."""
        self.really_ran.setdefault(order.job_id, []).append((order.attempt_id, outcome))

    # Agents

    def agent_stepped(self, agent: Agent) -> None:
        """Every state between has a deadline; what is idle has no process."""
        state = agent.state
        soonest = next_deadline(state)
        for device_id, device in state.devices.items():
            if (device.use is AgentUse.IDLE) != (device.deadline is None):
                fail("deadline", "%s: %s without one", device_id, device.use)
            if device.deadline is not None and (soonest is None or soonest > device.deadline):
                fail("deadline", "%s: next is %s", device_id, soonest)
            rig = agent.site.host.rigs[device_id]
            if device.use is AgentUse.IDLE and rig.processes and rig.of(agent.instance_id):
                fail("kill proof", "%s: idle for its agent with a process left", device_id)
        for attempt_id, build in state.builds.items():
            if (build.phase in ACTIVE_PHASES) != (build.deadline is not None):
                fail("deadline", "build %s: %s", attempt_id, build.phase)
        for attempt_id, run in state.runs.items():
            if (run.phase is RunPhase.FINISHED) != (run.deadline is None):
                fail("deadline", "run %s: %s", attempt_id, run.phase)
            if run.deadline is not None and (soonest is None or soonest > run.deadline):
                fail("deadline", "run %s: next is %s", attempt_id, soonest)

    def agent_reports(self, agent: Agent) -> None:
        """A device that an agent says is idle and good has no process of anybody."""
        for device_id, device in agent.state.devices.items():
            rig = agent.site.host.rigs[device_id]
            if device.use is AgentUse.IDLE and device.health.value == "GOOD" and rig.processes:
                fail("kill proof", "%s: reported free with a process left", device_id)

    # The tracker

    def loaded(self, tracker: Tracker) -> None:
        """Nothing that was promised is lost with a process of the tracker."""
        self._promises(tracker)
        self.accounts.loaded(tracker.state)

    def tracker_stepped(self, tracker: Tracker, event: Event, result: Step) -> None:
        """The state is whole; attempts fit the budgets; nothing is tried again that failed by its own fault."""
        changes = result.changes
        for attempt in changes.attempts.values():
            if attempt is not None and attempt.state is AttemptState.BUILDING:
                self._attempted(tracker, attempt)
        for run in changes.run_attempts.values():
            if run is not None and run.state is RunAttemptState.RUNNING:
                self._run_attempted(tracker, run)
        touched = {name for name in PARTS if getattr(changes, name)}
        wrong = violations(tracker.state, touched)
        if wrong:
            fail("state", "after %s: %s", type(event).__name__, "; ".join(wrong))
        soonest = min((it.at for _, it in deadlines(tracker.state)), default=None)
        if tracker.state.next_deadline() != soonest:
            fail("deadline", "next is %s, not %s", tracker.state.next_deadline(), soonest)
        self.accounts.stepped(tracker.state, changes, tracker.now())
        self._free_devices(tracker)

    def armed(self, tracker: Tracker, at: float | None) -> None:
        """A farm that is not at rest has a timer."""
        if at is None and (tracker.state.leases or tracker.state.open_units):
            fail("deadline", "something waits and no timer is armed")

    def performed(self, tracker: Tracker, command: Command) -> None:  # noqa: C901 - one case each
        """What leaves the tracker is on disk."""
        truth = self.farm.disk.truth
        match command:
            case GrantLease(lease, device):
                self._stored_lease(lease)
                if not lease.demand.can_run(device.description):
                    fail("variant", "%s runs none of what %s has", device.device_id, lease.lease_id)
                device_id = str(device.device_id)
                if lease.epoch <= self.granted.get(device_id, 0):
                    fail("epoch", "%s: %d was given out before", device_id, lease.epoch)
                self.granted[device_id] = lease.epoch
            case PushDesired():
                for lease in command.leases:
                    self._stored_lease(lease)
                for order in command.builds:
                    if truth.attempts.get(order.attempt_id) is None:
                        fail("commit", "attempt %s is sent but not stored", order.attempt_id)
                for run in command.runs:
                    if truth.run_attempts.get(run.attempt.attempt_id) is None:
                        fail("commit", "run %s is sent but not stored", run.attempt.attempt_id)
            case JobAccepted():
                if truth.run_jobs.get(command.job_id) is None:
                    fail("commit", "job %s is acknowledged but not stored", command.job_id)

    def committed(self, tracker: Tracker, changes: Changes) -> None:
        """A result that was stored never changes; one exists only if the work was done."""
        for attempt_id, attempt in changes.attempts.items():
            if attempt is None or attempt.state is AttemptState.BUILDING:
                continue
            now = (attempt.state, attempt.failure)
            if self.outcomes.setdefault(attempt_id, now) != now:
                fail("result", "%s was %s, is %s", attempt_id, self.outcomes[attempt_id], now)
            self._worked(attempt)
        self.ever_stored.update(key for key, it in changes.leases.items() if it is not None)
        for job_id, job in changes.run_jobs.items():
            if job is not None and not job.is_open:
                self._ended(job)
            elif job is not None and job_id in self.verdicts:
                fail("result", "%s ended as %s and is open", job_id, self.verdicts[job_id])

        for attempt_id, run in changes.run_attempts.items():
            if run is not None and run.state is RunAttemptState.INFRA_FAILED:
                assert run.failure is not None
                if issubclass(error_class(run.failure.code), USER_FAULTS):
                    fail("user fault", "%s: %s taken for the farm's", attempt_id, run.failure.code)

    def accepted(self, key: str, answer: JobAccepted) -> None:
        """Note that a client was told of a job: the same one for the same key, always."""
        known = self.jobs_of_keys.setdefault(key, answer.job_id)
        if known != answer.job_id:
            fail("key", "client %s was told of %s and of %s", key, known, answer.job_id)

    def shown(self, job: RunJob) -> None:
        """What a client is shown of a job is stored."""
        stored = self.farm.disk.truth.run_jobs.get(job.job_id)
        if stored is None or (not job.is_open and stored.outcome is not job.outcome):
            fail("commit", "job %s is shown as %s before it is stored", job.job_id, job.outcome)

    def _ended(self, job: RunJob) -> None:
        """An outcome stands; a verdict is of a run that happened; poison has two victims."""
        now = (job.outcome, job.verdict, job.result, job.failure)
        if self.verdicts.setdefault(job.job_id, now) != now:
            fail("result", "%s was %s, is %s", job.job_id, self.verdicts[job.job_id], now)
        if (job.outcome is Outcome.COMPLETED) != (job.verdict is not None):
            fail("verdict", "%s: %s with %s", job.job_id, job.outcome, job.verdict)
        if job.verdict is not None:
            told = job.failure.code if job.failure is not None else job.result
            real = [_kind_of(outcome) for _, outcome in self.really_ran.get(job.job_id, ())]
            # A kernel that crashed and then could not be killed in time ran past its limit as well.
            also = told == "TIME_LIMIT" and "KERNEL_CRASHED" in real
            if told not in real and not also:
                fail("verdict", "%s: %s says %s, ran: %s", job.job_id, job.verdict, told, real)
        if (job.outcome is Outcome.POISONED) != (len(job.lost_devices) >= POISON_DEVICES):
            fail("poison", "%s: %s after losing %s", job.job_id, job.outcome, job.lost_devices)

    def promise(self, lease: Lease) -> None:
        """Note that a client was told of a lease."""
        self.promised[lease.lease_id] = lease

    def at_end(self, tracker: Tracker) -> None:
        """Nothing that was promised is open or lost."""
        self._promises(tracker)
        if self.farm.is_calm:
            for job in tracker.state.run_jobs.values():
                if len(job.attempt_ids) > 1:
                    fail("adopt", "%s was run again: %s", job.job_id, "; ".join(job.story))

    def _promises(self, tracker: Tracker) -> None:
        stored = self.farm.disk.truth.leases
        for lease_id in self.promised:
            lease = stored.get(lease_id)
            if lease_id not in self.ever_stored:
                fail("promise", "lease %s was acknowledged and never stored", lease_id)
            elif lease is not None and lease.is_live and lease_id not in tracker.state.leases:
                fail("promise", "lease %s is stored as live and the tracker lost it", lease_id)

        for key, job_id in self.jobs_of_keys.items():
            job = tracker.state.run_jobs.get(job_id)
            if job is None:
                fail("promise", "job %s of %s was acknowledged and is lost", job_id, key)
            elif job_id in self.verdicts and job.is_open:
                fail("promise", "job %s ended and is open again", job_id)

    def _stored_lease(self, lease: Lease) -> None:
        truth = self.farm.disk.truth
        stored = truth.leases.get(lease.lease_id)
        if stored is None or stored.epoch != lease.epoch:
            fail(
                "commit",
                "lease %s epoch %d leaves before it is stored",
                lease.lease_id,
                lease.epoch,
            )
        device = truth.devices.get(lease.device_id) if lease.device_id else None
        if lease.epoch > (truth.epoch_floor if device is None else device.epoch):
            fail("commit", "epoch %d of %s leaves unstored", lease.epoch, lease.device_id)

    def _attempted(self, tracker: Tracker, attempt: Attempt) -> None:
        unit = tracker.state.units[attempt.unit_id]
        limits = tracker.state.limits
        if unit.tries > 1 + limits.infra_budget + limits.lost_budget:
            fail("budget", "unit %s: %d tries", unit.unit_id, unit.tries)
        fault = self.user_faults.get(unit.unit_id)
        if fault is not None:
            fail("user fault", "unit %s is tried again after %s", unit.unit_id, fault)

    def _run_attempted(self, tracker: Tracker, attempt: RunAttempt) -> None:
        limits = tracker.state.limits
        job = tracker.state.run_jobs[attempt.job_id]
        if len(job.attempt_ids) > 1 + limits.infra_budget + limits.lost_budget:
            fail("budget", "job %s: attempts %s", job.job_id, job.attempt_ids)
        if attempt.job_id in self.verdicts:
            fail("user fault", "job %s runs again after it ended", attempt.job_id)

    def _worked(self, attempt: Attempt) -> None:
        attempt_id = attempt.attempt_id
        failure = attempt.failure
        if attempt.state is AttemptState.DONE and attempt_id not in self.compiled_attempts:
            fail("verdict", "%s has a result and never compiled", attempt_id)
        failed = attempt.state is AttemptState.FAILED and failure is not None
        if failed and not issubclass(error_class(failure.code), InfrastructureError):
            self.user_faults[attempt.unit_id] = failure.code

    def _free_devices(self, tracker: Tracker) -> None:
        """A device that can be granted has no process left."""
        for device_id in tracker.state.free_devices:
            if self.farm.rigs[device_id].processes:
                fail("freed", "%s is free with processes on it", device_id)


def _kind_of(outcome: object) -> object:
    """Return what tells an outcome from another: its result, or the code of its failure."""
    return outcome.message if isinstance(outcome, RunResult) else outcome.code  # type: ignore[attr-defined]
