"""Run jobs: from a submit over attempts to an outcome.

Owns: idempotency, attempts and their leases, retry budgets, poison, what late results mean, logs.
Does not own: which device a job gets (`scheduling`), leases themselves (`leases`), what is run.

Invariant: the first result that is committed stands; a user's fault is never tried again, the farm's only within the
budgets; a job that lost two distinct devices is POISONED; at most one attempt of a job is RUNNING, and its lease is
live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.core.ids import AttemptId, LeaseId
from farm.core.values import replace
from farm.errors import (
    BuildFailed,
    Cancelled,
    DeviceLost,
    InfrastructureError,
    InvalidInput,
    KernelFailed,
    TimeLimit,
    error_class,
)
from farm_tracker.state import leases, scheduling
from farm_tracker.state.backoff import delay_s
from farm_tracker.state.builds import as_failure
from farm_tracker.state.commands import JobAccepted, JobChanged
from farm_tracker.state.demand import demand_of
from farm_tracker.state.model import POISON_DEVICES, Device, Lease
from farm_tracker.state.run import (
    LogPart,
    Outcome,
    RunAttempt,
    RunAttemptState,
    RunJob,
    RunState,
    Verdict,
)
from farm_tracker.state.table import RUN, RUN_ATTEMPT, Trigger, follow, told

if TYPE_CHECKING:
    from farm.core.ids import DeviceId
    from farm_tracker.state.events import (
        AgentReported,
        JobCancelled,
        JobSubmitted,
        JobWatched,
        RunReport,
    )
    from farm_tracker.state.state import Draft
    from farm_tracker.state.work import Failure

USER_FAULTS = (KernelFailed, TimeLimit, InvalidInput, BuildFailed)


def submit(draft: Draft, event: JobSubmitted) -> None:
    """Queue a job, unless it is here already."""
    known = draft.job_of_client(event.account, event.client_key)
    if known is not None:
        if known.content != event.content:
            raise InvalidInput(
                f"job {known.job_id}: submitted before under the client key "
                f"{event.client_key!r} with another content; use another key",
                job_id=known.job_id,
            )
        draft.commands.append(JobAccepted(event.job_id, known.job_id, True))
        return
    if draft.run_jobs.get(event.job_id) is not None:
        raise InvalidInput(f"job {event.job_id}: exists already; use a fresh id")
    if not event.wait_for_device:
        leases.check_can_serve(draft, demand_of(event.selector, event.variants))
    scheduling.check_may_wait(draft, event.account)
    job = _new_job(draft, event)
    draft.run_jobs[job.job_id] = _moved(draft, job, Trigger.ENQUEUE, "submitted")
    scheduling.join(draft, job)
    draft.commands.append(JobAccepted(event.job_id, job.job_id, False))
    what = str(event.selector) or "any device"
    draft.note("job.submitted", job.job_id, f"for {what}", event.account, job.account)


def start(draft: Draft, job: RunJob, device: Device) -> None:
    """Begin the next attempt of a queued job on a free device."""
    attempt_id = AttemptId(f"{job.job_id}.{len(job.attempt_ids) + 1}")
    term_s = draft.limits.term_of(job.limit_s)
    lease = Lease(
        lease_id=LeaseId(f"{attempt_id}.lease"),
        selector=job.selector,
        holder=f"job {job.job_id}",
        ttl_s=term_s,
        wait_until=draft.now,
        story=(f"{draft.now:.3f} QUEUED",),
        account=job.account,
        priority=job.priority,
        job_id=job.job_id,
        queued_at=job.queued_at,
        variants=job.variants,
    )
    granted = leases.grant(draft, lease, device)
    draft.run_attempts[attempt_id] = RunAttempt(
        attempt_id=attempt_id,
        job_id=job.job_id,
        lease_id=lease.lease_id,
        device_id=device.device_id,
        agent_id=device.agent_id,
        instance_id=draft.agents[device.agent_id].instance_id,
        epoch=granted.epoch,
        started_at=draft.now,
    )
    running = _moved(draft, job, Trigger.ASSIGN, f"{attempt_id} on {device.device_id}")
    draft.run_jobs[job.job_id] = replace(
        running,
        attempt_id=attempt_id,
        attempt_ids=(*job.attempt_ids, attempt_id),
        elsewhere_until=None,
    )
    draft.commands.append(JobChanged(job.job_id))


def cancel(draft: Draft, event: JobCancelled) -> None:
    """End a job because somebody wishes it."""
    job = draft.run_jobs.get(event.job_id)
    if job is None or not job.is_open:
        return
    by = f" by {event.actor}" if event.actor else ""
    why = f" ({event.reason})" if event.reason else ""
    _give_up(draft, job, f"cancelled{by}{why}", event.actor)


def watch(draft: Draft, event: JobWatched) -> None:
    """Count who waits for a job; without anybody it may have to end after a while."""
    job = draft.run_jobs.get(event.job_id)
    if job is None or not job.is_open:
        return
    watchers = max(0, job.watchers + (1 if event.watched else -1))
    until = draft.now + draft.limits.unwatched_s
    draft.run_jobs[job.job_id] = replace(
        job,
        watchers=watchers,
        unwatched_until=until if job.cancel_when_unwatched and not watchers else None,
    )


def expire(draft: Draft, job: RunJob) -> None:
    """Queue a job that waited long enough after a failure, or let it have any device that it matches.

    End one that nobody waits for, or that waited too long.
    """
    if job.unwatched_until is not None and job.unwatched_until <= draft.now:
        _give_up(draft, job, "cancelled, since nobody waits for it any more", "")
        return
    if job.state is RunState.DELAYED:
        _queue_again(draft, _moved(draft, job, Trigger.ENQUEUE, "waited after a failure"))
        return
    if job.elsewhere_until is not None and draft.now < job.queue_until:
        draft.run_jobs[job.job_id] = replace(job, elsewhere_until=None)
        draft.joined[job.key] = None  # a device that it avoided may be free
        return
    limit = f"{job.queue_limit_s:g} s"
    if job.attempt_ids:
        error: TimeLimit | InfrastructureError = InfrastructureError(
            f"job {job.job_id}: failed by the farm, and not started again within {limit}; submit it again"
        )
        outcome = Outcome.INFRA_FAILED
    else:
        error = TimeLimit(
            f"job {job.job_id}: not started within {limit}; raise its queue limit (--queue-limit, queue_limit_s)"
        )
        outcome = Outcome.TIME_LIMIT
    _end(draft, job, Trigger.EXPIRE, outcome, failure=as_failure(error))


def report(draft: Draft, event: AgentReported, it: RunReport) -> None:
    """Take in what an agent says of one run attempt; the first result stands."""
    attempt = draft.run_attempts.get(it.attempt_id)
    if attempt is None or attempt.agent_id != event.agent_id or attempt.epoch != it.epoch:
        if attempt is not None and it.is_finished:
            text = f"a result of agent {event.agent_id} (epoch {it.epoch}) does not count"
            owner = draft.run_jobs[attempt.job_id].account
            draft.note("attempt.fenced", it.attempt_id, text, account=owner)
        draft.push[event.agent_id] = None  # the agent may drop it
        return
    if attempt.state is RunAttemptState.RUNNING:
        if it.is_finished or attempt.instance_id == event.instance_id:
            _take_log(draft, attempt, it)
            _finish(draft, draft.run_attempts[attempt.attempt_id], it)
        return
    draft.push[event.agent_id] = None
    if attempt.state is RunAttemptState.LOST:
        if is_about_the_work(it):
            _late(draft, attempt, it)
        else:
            _hear_of_lost(draft, attempt, it)


def settle(draft: Draft) -> None:
    """Take attempts whose leases ended under them for lost, or failed by the farm."""
    for lease, trigger, cause in draft.ended_leases:
        job = draft.run_jobs.get(lease.job_id) if lease.job_id is not None else None
        attempt = draft.run_attempts.get(job.attempt_id) if job and job.attempt_id else None
        if job is None or attempt is None or attempt.lease_id != lease.lease_id:
            continue
        if trigger is Trigger.REVOKE:
            error = InfrastructureError(f"job {job.job_id}: its lease was revoked ({cause})")
            _fail(draft, job, attempt, as_failure(error))
        else:
            _lose(draft, job, attempt, cause)
    draft.ended_leases.clear()


def forget(draft: Draft, job: RunJob) -> None:
    """Drop a job that ended long ago, with its attempts."""
    for attempt_id in job.attempt_ids:
        draft.run_attempts.forget(attempt_id)
    draft.run_jobs.forget(job.job_id)


def is_about_the_work(it: RunReport) -> bool:
    """Tell whether a report says that the work ran to its end, well or by its own fault badly."""
    if it.failure is None:
        return it.result is not None
    return issubclass(error_class(it.failure.code), USER_FAULTS)


def _new_job(draft: Draft, event: JobSubmitted) -> RunJob:
    until = draft.now + draft.limits.unwatched_s
    return RunJob(
        job_id=event.job_id,
        account=event.account,
        client_key=event.client_key,
        content=event.content,
        selector=event.selector,
        run=event.run,
        limit_s=event.limit_s,
        priority=event.priority,
        queue_limit_s=event.queue_limit_s,
        cancel_when_unwatched=event.cancel_when_unwatched,
        queued_at=draft.now,
        queue_until=draft.now + event.queue_limit_s,
        infra_left=draft.limits.infra_budget,
        lost_left=draft.limits.lost_budget,
        unwatched_until=until if event.cancel_when_unwatched else None,
        variants=event.variants,
    )


def _moved(draft: Draft, job: RunJob, trigger: Trigger, line: str) -> RunJob:
    state = follow(RUN, job.state, trigger, f"job {job.job_id}", job.story)
    return replace(job, state=state, story=told(job.story, f"{draft.now:.3f} {state}: {line}"))


def _finish(draft: Draft, attempt: RunAttempt, it: RunReport) -> None:
    """Take the end of the attempt that runs, if it ended."""
    job = draft.run_jobs[attempt.job_id]
    lease = draft.leases[attempt.lease_id]
    if is_about_the_work(it):
        _end_attempt(draft, attempt, Trigger.SUCCEED, failure=it.failure)
        leases.end(draft, lease, Trigger.RELEASE, "its run ended")
        _complete(draft, job, it)
    elif it.failure is None:
        return
    elif error_class(it.failure.code) is DeviceLost:
        leases.end(draft, lease, Trigger.LOSE, it.failure.message)  # `settle` does the rest
    else:
        _fail(draft, job, attempt, it.failure)


def _late(draft: Draft, attempt: RunAttempt, it: RunReport) -> None:
    """Take a result of an attempt that was given up: it counts if nobody has begun anew since."""
    job = draft.run_jobs[attempt.job_id]
    if job.waits_after(attempt.attempt_id):
        _take_log(draft, attempt, it)
        attempt = draft.run_attempts[attempt.attempt_id]
        _end_attempt(draft, attempt, Trigger.SUCCEED, failure=it.failure)
        _complete(draft, draft.run_jobs[job.job_id], it)
        return
    _end_attempt(draft, attempt, Trigger.SUPERSEDE, failure=it.failure, result=it.result)
    text = "its result came late; kept, not counted"
    draft.note("attempt.superseded", attempt.attempt_id, text, account=job.account)
    draft.commands.append(JobChanged(job.job_id))


def _hear_of_lost(draft: Draft, attempt: RunAttempt, it: RunReport) -> None:
    """Wait a while, once, for what an agent that was away has yet to store, rather than make the run again."""
    job = draft.run_jobs[attempt.job_id]
    if not job.waits_after(attempt.attempt_id):
        return
    if it.is_finished and not job.is_queued:
        _queue_again(draft, _moved(draft, job, Trigger.ENQUEUE, "its agent has no result of it"))
    elif not it.is_finished and job.is_queued and job.not_before <= (attempt.ended_at or 0.0):
        scheduling.leave(draft, job)
        line = f"agent {attempt.agent_id} is back and ends {attempt.attempt_id}"
        delayed = replace(
            _moved(draft, job, Trigger.DELAY, line), not_before=draft.now + draft.limits.late_s
        )
        draft.run_jobs[job.job_id] = delayed
        draft.commands.append(JobChanged(job.job_id))


def _complete(draft: Draft, job: RunJob, it: RunReport) -> None:
    verdict = Verdict.PASS if it.failure is None else Verdict.FAIL
    _end(
        draft,
        job,
        Trigger.SUCCEED,
        Outcome.COMPLETED,
        verdict=verdict,
        result=it.result,
        failure=it.failure,
    )


def _fail(draft: Draft, job: RunJob, attempt: RunAttempt, failure: Failure) -> None:
    """End an attempt that the farm failed; try again while the budget lasts."""
    _end_attempt(draft, attempt, Trigger.FAIL, failure=failure)
    lease = draft.leases.get(attempt.lease_id)
    if lease is not None and lease.is_live:
        leases.end(draft, lease, Trigger.RELEASE, "its run failed")
    shunned = _with(job.shunned, attempt)
    if job.infra_left > 0:
        _delay(draft, replace(job, infra_left=job.infra_left - 1, shunned=shunned), failure)
    else:
        _end(draft, job, Trigger.FAIL, Outcome.INFRA_FAILED, failure=failure)


def _lose(draft: Draft, job: RunJob, attempt: RunAttempt, cause: str) -> None:
    """End an attempt whose device or agent went away; try elsewhere unless the job seems to kill devices."""
    error = DeviceLost(f"job {job.job_id}: lost on {attempt.device_id} ({cause})")
    failure = as_failure(error)
    _end_attempt(draft, attempt, Trigger.LOSE, failure=failure)
    lost = _with(job.lost_devices, attempt)
    job = replace(job, lost_devices=lost, shunned=_with(job.shunned, attempt))
    if len(lost) >= POISON_DEVICES:
        poison = InfrastructureError(
            f"job {job.job_id}: lost the devices {', '.join(lost)} and is not tried again; "
            "look at what it runs before you submit it again"
        )
        _end(draft, job, Trigger.FAIL, Outcome.POISONED, failure=as_failure(poison))
    elif job.lost_left > 0:
        _retry(draft, replace(job, lost_left=job.lost_left - 1), failure)
    else:
        _end(draft, job, Trigger.FAIL, Outcome.INFRA_FAILED, failure=failure)


def _retry(draft: Draft, job: RunJob, failure: Failure) -> None:
    """Queue a job again, in its old place."""
    _queue_again(draft, _moved(draft, job, Trigger.RETRY, failure.message))
    draft.note("job.retried", job.job_id, failure.message, account=job.account)


def _queue_again(draft: Draft, job: RunJob) -> None:
    queued = replace(
        job,
        attempt_id=None,
        queue_until=draft.now + job.queue_limit_s,
        elsewhere_until=(
            draft.now + draft.limits.elsewhere_s if scheduling.has_another(draft, job) else None
        ),
    )
    draft.run_jobs[job.job_id] = queued
    scheduling.join(draft, queued)
    draft.commands.append(JobChanged(job.job_id))


def _delay(draft: Draft, job: RunJob, failure: Failure) -> None:
    """Let a job that the farm failed wait a while before it is queued again."""
    failures = draft.limits.infra_budget - job.infra_left
    wait_s = delay_s(draft.limits, failures, job.attempt_ids[-1])
    delayed = _moved(draft, job, Trigger.DELAY, failure.message)
    delayed = replace(delayed, attempt_id=None, not_before=draft.now + wait_s)
    draft.run_jobs[job.job_id] = delayed
    draft.note(
        "job.retried", job.job_id, f"in {wait_s:.1f} s: {failure.message}", account=job.account
    )
    draft.commands.append(JobChanged(job.job_id))


def _give_up(draft: Draft, job: RunJob, cause: str, actor: str) -> None:
    attempt = draft.run_attempts.get(job.attempt_id) if job.attempt_id is not None else None
    failure = as_failure(Cancelled(f"job {job.job_id}: {cause}; submit it again"))
    if attempt is not None:
        _end_attempt(draft, attempt, Trigger.CANCEL, failure=failure)
        leases.end(draft, draft.leases[attempt.lease_id], Trigger.REVOKE, f"its job was {cause}")
    _end(draft, job, Trigger.CANCEL, Outcome.CANCELLED, failure=failure, actor=actor)


def _end_attempt(
    draft: Draft,
    attempt: RunAttempt,
    trigger: Trigger,
    *,
    failure: Failure | None = None,
    result: bytes | None = None,
) -> None:
    subject = f"attempt {attempt.attempt_id}"
    draft.run_attempts[attempt.attempt_id] = replace(
        attempt,
        state=follow(RUN_ATTEMPT, attempt.state, trigger, subject),
        failure=failure,
        result=result,
        ended_at=draft.now,
    )
    draft.push[attempt.agent_id] = None


def _end(
    draft: Draft,
    job: RunJob,
    trigger: Trigger,
    outcome: Outcome,
    *,
    verdict: Verdict | None = None,
    result: bytes | None = None,
    failure: Failure | None = None,
    actor: str = "",
) -> None:
    """Give a job its outcome, for good."""
    if job.is_queued:
        scheduling.leave(draft, job)
    ended = f"{outcome}{f', {verdict}' if verdict else ''}"
    text = f"{ended}: {failure.message}" if failure else ended
    draft.run_jobs[job.job_id] = replace(
        _moved(draft, job, trigger, text),
        outcome=outcome,
        verdict=verdict,
        result=result,
        failure=failure,
        attempt_id=None,
        unwatched_until=None,
        ended_at=draft.now,
        forget_at=draft.now + draft.limits.job_retain_s,
    )
    draft.note("job.ended", job.job_id, text, actor, job.account)
    draft.commands.append(JobChanged(job.job_id))


def _take_log(draft: Draft, attempt: RunAttempt, it: RunReport) -> None:
    """Append the chunks that are new to the job's log, up to its limit."""
    job = draft.run_jobs[attempt.job_id]
    fresh = it.log[attempt.log_chunks :]
    parts, size_bytes = list(job.log), job.log_bytes
    is_cut = job.log_is_cut
    for blob in fresh if not is_cut else ():
        size_bytes += blob.size_bytes
        is_cut = size_bytes > draft.limits.log_bytes
        if is_cut:
            break
        parts.append(LogPart(attempt.attempt_id, blob))
    is_cut = is_cut or (it.log_is_cut and it.is_finished)
    if is_cut and not job.log_is_cut:
        parts.append(LogPart(attempt.attempt_id, None))
    if len(parts) == len(job.log) and not fresh:
        return
    draft.run_attempts[attempt.attempt_id] = replace(attempt, log_chunks=len(it.log))
    draft.run_jobs[job.job_id] = replace(job, log=tuple(parts), log_bytes=size_bytes)
    draft.commands.append(JobChanged(job.job_id))


def _with(devices: tuple[DeviceId, ...], attempt: RunAttempt) -> tuple[DeviceId, ...]:
    return devices if attempt.device_id in devices else (*devices, attempt.device_id)
