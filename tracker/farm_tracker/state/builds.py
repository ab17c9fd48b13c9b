"""Builds: from a job's units over attempts of agents to an outcome.

Owns: queueing, sharing equal units, assigning to agents, retry budgets, when a job is over.
Does not own: the build cache's lookup and merging modules (`farm_tracker.builds`).

Invariant: the first outcome of a unit stands; an error of the work is never retried, a loss only within its budget;
no queued unit waits while an online agent that builds its family has a free slot.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from farm.core.ids import AgentId, AttemptId
from farm.core.values import replace
from farm.errors import (
    Cancelled,
    DeviceLost,
    FarmError,
    InfrastructureError,
    InvalidInput,
    NobodyCanServe,
    TimeLimit,
    error_class,
)
from farm_tracker.state.backoff import delay_s
from farm_tracker.state.commands import JobEnded, UnitChanged
from farm_tracker.state.model import Agent, Observed
from farm_tracker.state.table import ATTEMPT, JOB, UNIT, Trigger, follow
from farm_tracker.state.work import (
    Attempt,
    AttemptState,
    BuildJob,
    BuildUnit,
    CacheEntry,
    Failure,
    JobState,
    UnitState,
)

if TYPE_CHECKING:
    from farm_tracker.state.events import (
        AgentReported,
        AttemptReport,
        BuildCancelled,
        BuildMerged,
        BuildSubmitted,
    )
    from farm_tracker.state.state import Draft
    from farm_tracker.state.work import UnitId, UnitSpec


def submit(draft: Draft, event: BuildSubmitted) -> None:
    """Queue a job's units, each once for the whole farm."""
    if draft.jobs.get(event.job_id) is not None or not event.units:
        raise InvalidInput(
            f"build {event.job_id}: known already or empty; use a fresh id and items"
        )
    check_builders(draft, {spec.family for _, spec in event.units})
    shared = [draft.open_unit(spec) for _, spec in event.units]
    units = [
        replace(known, job_ids=(*known.job_ids, event.job_id))
        if known
        else _new_unit(draft, unit_id, spec, event)
        for known, (unit_id, spec) in zip(shared, event.units, strict=True)
    ]
    job = BuildJob(
        job_id=event.job_id,
        request_key=event.request_key,
        target_host=event.target_host,
        unit_ids=tuple(unit.unit_id for unit in units),
        keep_going=event.keep_going,
        deadline=draft.now + draft.limits.job_s,
    )
    under_way = any(unit.state is UnitState.BUILDING for unit in units)
    job = _moved(job, Trigger.ENQUEUE)
    draft.jobs[job.job_id] = _moved(job, Trigger.ASSIGN) if under_way else job
    for unit in units:
        draft.units[unit.unit_id] = unit
        draft.families[unit.spec.family] = None
        draft.commands.append(UnitChanged(unit, (job.job_id,)))


def check_builders(draft: Draft, families: set[str]) -> None:
    """Raise NobodyCanServe if no agent that is there builds one of the families.

    One that was there before the tracker was restarted has its time to come back.
    """
    built = {
        family
        for agent in draft.agents.values()
        if agent.observed is not Observed.OFFLINE and agent.build_slots > 0
        for family in agent.builds
    }
    for family in sorted(families - built):
        raise NobodyCanServe(
            f"target family {family}: no agent builds it (agents build: "
            f"{', '.join(sorted(built)) or 'nothing'}); start an agent that does"
        )


def cancel(draft: Draft, event: BuildCancelled) -> None:
    """End a job whose client went away."""
    job = draft.jobs.get(event.job_id)
    if job is not None and job.is_open:
        end_job(draft, job, Trigger.CANCEL, "its client went away")


def merged(draft: Draft, event: BuildMerged) -> None:
    """Note the artifact of a job, or why there is none."""
    job = draft.jobs.get(event.job_id)
    if job is None or not job.is_open:
        return
    if event.artifact is None:
        end_job(draft, job, Trigger.FAIL, event.cause)
    else:
        done = _moved(job, Trigger.SUCCEED)
        forget_at = draft.now + draft.limits.retain_s
        draft.jobs[job.job_id] = replace(done, artifact=event.artifact, forget_at=forget_at)


def end_job(draft: Draft, job: BuildJob, trigger: Trigger, cause: str) -> None:
    """End a job, and those of its units that nobody else wants."""
    ended = replace(_moved(job, trigger), cause=cause, forget_at=draft.now + draft.limits.retain_s)
    draft.jobs[job.job_id] = ended
    for unit_id in job.unit_ids:
        unit = draft.units.get(unit_id)
        if unit is None or not unit.is_open:
            continue
        others = tuple(it for it in unit.job_ids if it != job.job_id)
        draft.units[unit_id] = replace(unit, job_ids=others)
        error = Cancelled(f"{unit.spec.symbol}: not built, {cause}; build again")
        told = replace(unit, state=UnitState.CANCELLED, failure=as_failure(error))
        draft.commands.append(UnitChanged(told, (job.job_id,)))
        if not others:
            _end_attempt(draft, unit, Trigger.CANCEL)
            _settle(draft, draft.units[unit_id], Trigger.CANCEL, failure=told.failure)
    draft.commands.append(JobEnded(job.job_id, ended.state, cause))


def report(draft: Draft, event: AgentReported, it: AttemptReport) -> None:
    """Take in what an agent says of one attempt; the first outcome stands."""
    attempt = draft.attempts.get(it.attempt_id)
    if attempt is None or attempt.state is not AttemptState.BUILDING:
        draft.push[event.agent_id] = None  # the agent may drop it
        return
    if attempt.agent_id != event.agent_id or attempt.instance_id != event.instance_id:
        return
    unit = draft.units[attempt.unit_id]
    if it.module is not None:
        _end_attempt(draft, unit, Trigger.SUCCEED, seconds=it.seconds)
        draft.changes.cached.append(CacheEntry(unit.spec, event.version, it.module))
        done = replace(draft.units[unit.unit_id], module=it.module, seconds=it.seconds)
        _settle(draft, done, Trigger.SUCCEED)
    elif it.failure is not None:
        _end_attempt(draft, unit, Trigger.FAIL, failure=it.failure, seconds=it.seconds)
        _fail(draft, replace(unit, seconds=it.seconds), it.failure)


def lose(draft: Draft, attempt: Attempt, cause: str) -> None:
    """Take an attempt for lost; try its unit elsewhere while its budget lasts."""
    unit = draft.units[attempt.unit_id]
    error = DeviceLost(f"{unit.spec.symbol}: its build was lost ({cause}); build again")
    failure = as_failure(error)
    _end_attempt(draft, unit, Trigger.LOSE, failure=failure)
    if unit.lost_left > 0:
        _retry(draft, replace(draft.units[unit.unit_id], lost_left=unit.lost_left - 1))
    else:
        _settle(draft, draft.units[unit.unit_id], Trigger.FAIL, failure=failure)


def lose_all(draft: Draft, agent: Agent, cause: str) -> None:
    """Take every attempt of an agent for lost."""
    for attempt_id in agent.attempt_ids:
        attempt = draft.attempts[attempt_id]
        if attempt.state is AttemptState.BUILDING:  # losing one may end the job, and with it others
            lose(draft, attempt, cause)


def assign(draft: Draft) -> None:
    """Give queued units of the families that this step touched to agents with a free slot, the freest first."""
    for family in draft.families:
        units = list(draft.queued_units(family))
        if not units:
            continue
        builders = [
            (-agent.free_slots, agent.agent_id)
            for agent in draft.agents.values()
            if family in agent.builds and agent.free_slots > 0
        ]
        heapq.heapify(builders)
        for unit in units:
            if not builders:
                break
            at = _place(builders, unit)
            agent_id = builders[at][1]
            _start(draft, unit, draft.agents[agent_id])
            free_slots = draft.agents[agent_id].free_slots
            if at > 0:  # out of turn, after a failure
                builders[at : at + 1] = [(-free_slots, agent_id)] if free_slots > 0 else []
                heapq.heapify(builders)
            elif free_slots > 0:
                heapq.heapreplace(builders, (-free_slots, agent_id))
            else:
                heapq.heappop(builders)


def _place(builders: list[tuple[int, AgentId]], unit: BuildUnit) -> int:
    """Return the place of the freest agent in a heap, rather one that did not fail the unit."""
    others = [it for it in builders if it[1] not in unit.shunned] if unit.shunned else []
    return builders.index(min(others)) if others else 0


def expire_unit(draft: Draft, unit: BuildUnit) -> None:
    """Queue a unit that waited long enough after a failure; give up on one that no agent took in time."""
    if unit.state is UnitState.DELAYED:
        queued = follow(UNIT, unit.state, Trigger.ENQUEUE, f"unit {unit.unit_id}")
        until = draft.now + draft.limits.unit_wait_s
        draft.units[unit.unit_id] = replace(unit, state=queued, wait_until=until)
        draft.families[unit.spec.family] = None
        return
    error = InfrastructureError(
        f"{unit.spec.symbol}: no agent that builds {unit.spec.family} was free for "
        f"{draft.limits.unit_wait_s:g} s; build again later"
    )
    _settle(draft, unit, Trigger.FAIL, failure=as_failure(error))


def expire_job(draft: Draft, job: BuildJob) -> None:
    """Give up on a job that takes too long as a whole."""
    error = TimeLimit(f"build {job.job_id}: over its limit ({draft.limits.job_s:g} s); split it")
    end_job(draft, job, Trigger.FAIL, error.message)


def as_failure(error: FarmError) -> Failure:
    """Return an error as data."""
    return Failure(error.code, error.message, tuple(sorted(error.details.items())))


def _new_unit(draft: Draft, unit_id: UnitId, spec: UnitSpec, event: BuildSubmitted) -> BuildUnit:
    return BuildUnit(
        unit_id=unit_id,
        spec=spec,
        job_ids=(event.job_id,),
        wait_until=draft.now + draft.limits.unit_wait_s,
        infra_left=draft.limits.infra_budget,
        lost_left=draft.limits.lost_budget,
    )


def _moved(job: BuildJob, trigger: Trigger) -> BuildJob:
    return replace(job, state=follow(JOB, job.state, trigger, f"build {job.job_id}", (job.cause,)))


def _start(draft: Draft, unit: BuildUnit, agent: Agent) -> None:
    attempt = Attempt(
        attempt_id=AttemptId(f"{unit.unit_id}.{unit.tries + 1}"),
        unit_id=unit.unit_id,
        agent_id=agent.agent_id,
        instance_id=agent.instance_id,
        deadline=draft.now + draft.limits.attempt_s + draft.limits.attempt_grace_s,
        limit_s=draft.limits.attempt_s,
    )
    draft.attempts[attempt.attempt_id] = attempt
    ids = (*agent.attempt_ids, attempt.attempt_id)
    draft.agents[agent.agent_id] = replace(agent, attempt_ids=ids)
    started = replace(
        unit,
        state=follow(UNIT, unit.state, Trigger.ASSIGN, f"unit {unit.unit_id}"),
        attempt_id=attempt.attempt_id,
        agent_id=agent.agent_id,
        tries=unit.tries + 1,
    )
    draft.units[unit.unit_id] = started
    for job_id in unit.job_ids:
        draft.jobs[job_id] = _moved(draft.jobs[job_id], Trigger.ASSIGN)
    draft.commands.append(UnitChanged(started, unit.job_ids))
    draft.push[agent.agent_id] = None


def _end_attempt(
    draft: Draft,
    unit: BuildUnit,
    trigger: Trigger,
    *,
    failure: Failure | None = None,
    seconds: float = 0.0,
) -> None:
    """End the unit's attempt, if it has one, and free the agent's slot."""
    if unit.attempt_id is None:
        return
    attempt = draft.attempts[unit.attempt_id]
    draft.attempts[attempt.attempt_id] = replace(
        attempt,
        state=follow(ATTEMPT, attempt.state, trigger, f"attempt {attempt.attempt_id}"),
        failure=failure,
        seconds=seconds,
        forget_at=draft.now + draft.limits.retain_s,
    )
    draft.units[unit.unit_id] = replace(draft.units[unit.unit_id], attempt_id=None)
    agent = draft.agents[attempt.agent_id]
    ids = tuple(it for it in agent.attempt_ids if it != attempt.attempt_id)
    draft.agents[agent.agent_id] = replace(agent, attempt_ids=ids)
    draft.push[agent.agent_id] = None
    for family in agent.builds:
        draft.families[family] = None


def _fail(draft: Draft, unit: BuildUnit, failure: Failure) -> None:
    unit = replace(unit, attempt_id=None)
    if issubclass(error_class(failure.code), InfrastructureError) and unit.infra_left > 0:
        _delay(draft, replace(unit, infra_left=unit.infra_left - 1))
    else:
        _settle(draft, unit, Trigger.FAIL, failure=failure)


def _retry(draft: Draft, unit: BuildUnit) -> None:
    queued = replace(
        unit,
        state=follow(UNIT, unit.state, Trigger.RETRY, f"unit {unit.unit_id}"),
        attempt_id=None,
        agent_id=None,
        wait_until=draft.now + draft.limits.unit_wait_s,
    )
    draft.units[unit.unit_id] = queued
    draft.families[unit.spec.family] = None
    draft.commands.append(UnitChanged(queued, unit.job_ids))


def _delay(draft: Draft, unit: BuildUnit) -> None:
    """Let a unit that the farm failed wait a while before it is queued again."""
    failures = draft.limits.infra_budget - unit.infra_left
    agent_id = unit.agent_id
    subject = f"{unit.unit_id}.{unit.tries}"
    delayed = replace(
        unit,
        state=follow(UNIT, unit.state, Trigger.DELAY, f"unit {unit.unit_id}"),
        attempt_id=None,
        agent_id=None,
        shunned=unit.shunned if agent_id is None else (*unit.shunned, agent_id),
        not_before=draft.now + delay_s(draft.limits, failures, subject),
    )
    draft.units[unit.unit_id] = delayed
    draft.commands.append(UnitChanged(delayed, unit.job_ids))


def _settle(
    draft: Draft, unit: BuildUnit, trigger: Trigger, *, failure: Failure | None = None
) -> None:
    """Give a unit its outcome and see whether jobs are over with it."""
    settled = replace(
        unit,
        state=follow(UNIT, unit.state, trigger, f"unit {unit.unit_id}"),
        attempt_id=None,
        failure=failure,
        forget_at=draft.now + draft.limits.retain_s,
    )
    draft.units[unit.unit_id] = settled
    if not unit.job_ids:
        return
    draft.commands.append(UnitChanged(settled, unit.job_ids))
    for job_id in unit.job_ids:
        _review(draft, draft.jobs[job_id])


def _review(draft: Draft, job: BuildJob) -> None:
    """End a job that failed; have it merged when its last unit is done."""
    if not job.is_open:
        return
    units = [draft.units[unit_id] for unit_id in job.unit_ids]
    failed = [unit for unit in units if unit.state is UnitState.FAILED]
    still_open = any(unit.is_open for unit in units)
    if failed and not (job.keep_going and still_open):
        cause = f"{failed[0].spec.symbol} for {failed[0].spec.target} failed"
        end_job(draft, job, Trigger.FAIL, cause)
    elif not still_open:
        draft.commands.append(JobEnded(job.job_id, JobState.BUILDING, ""))
