"""Why a job waits: for what, in which place, until about when.

Owns: the explanation of one job at one moment. Does not own: the order itself (`scheduling`).

Invariant: it only reads; estimates come from what is known (limits of what runs, and of what is ahead), never from
guesses about the work, so they are mostly too late, seldom too early.
"""

from __future__ import annotations

import bisect
import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farm.core.values import replace
from farm.target import Selector
from farm_tracker.state import scheduling
from farm_tracker.state.leases import nobody
from farm_tracker.state.model import Admin, Use
from farm_tracker.state.run import RunAttemptState, RunState
from farm_tracker.state.state import Draft

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farm.core.ids import DeviceId
    from farm_tracker.state.model import Device
    from farm_tracker.state.queue import Entry, Group
    from farm_tracker.state.run import RunJob
    from farm_tracker.state.state import State

UNKNOWN_S = -1.0
EVERY = Selector(())
DEVICES_SHOWN = 64
PLACES_PLAYED = 1000
"""Places in the queue that are played through one by one for an estimate; beyond, the mean is taken."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One sentence, the place in the queue (1 is next, 0: not in it), seconds until about the start."""

    reason: str
    position: int = 0
    estimate_s: float = UNKNOWN_S
    devices: Mapping[str, str] = field(default_factory=dict)


def explain(state: State, job: RunJob, now: float, seen: Selector = EVERY) -> Explanation:
    """Return why a job is where it is, naming no device that `seen` does not match."""
    match job.state:
        case RunState.TERMINAL:
            verdict = f", {job.verdict}" if job.verdict else ""
            cause = f": {job.failure.message}" if job.failure else ""
            return Explanation(f"ended: {job.outcome}{verdict}{cause}")
        case RunState.RUNNING:
            return _running(state, job, now)
        case RunState.DELAYED:
            left_s = max(0.0, job.not_before - now)
            attempt = state.run_attempts[job.attempt_ids[-1]]
            failure = attempt.failure
            if attempt.state is RunAttemptState.LOST:
                return Explanation(
                    f"waits up to {left_s:.1f} s for what agent {attempt.agent_id} still has of its lost attempt"
                )
            cause = failure.message if failure else "the farm failed it"
            return Explanation(f"waits {left_s:.1f} s before it is tried again: {cause}")
        case _:
            return _waiting(state, job, now, seen)


def position(state: State, job: RunJob, now: float) -> int:
    """Return the place of a queued job among all that wait for one of the devices that it matches."""
    draft = Draft(state, now)
    mine = state.matching.of(job.demand)
    share = _share(draft, job.account)
    ahead = 0
    for text, groups in state.queue.lines.items():
        if text != job.demand.text and not _share_a_device(state, text, mine):
            continue
        for (priority, name), line in groups.items():
            ahead += _ahead(job, (priority, name), line, _share(draft, name) < share)
    return ahead + 1


def _running(state: State, job: RunJob, now: float) -> Explanation:
    assert job.attempt_id is not None
    attempt = state.run_attempts[job.attempt_id]
    lease = state.leases[attempt.lease_id]
    left_s = max(0.0, lease.expires_at - now)
    return Explanation(
        f"running on {attempt.device_id} for {now - attempt.started_at:.0f} s, at most {left_s:.0f} s more",
        estimate_s=0.0,
    )


def _waiting(state: State, job: RunJob, now: float, seen: Selector) -> Explanation:
    found = [state.devices[it] for it in state.matching.of(job.demand)]
    fitting = [it for it in found if it.admin is not Admin.RETIRED]
    place = position(state, job, now)
    if not fitting:
        devices_seen = [it for it in state.devices.values() if seen.matches(it.labels)]
        known = [it for it in devices_seen if it.admin is not Admin.RETIRED]
        if seen.terms and not known:
            return Explanation(f"waits for a device: none with {seen} is there", place)
        return Explanation(f"waits for a device: {nobody(job.demand, known).message}", place)
    devices = {it.device_id: _situation(state, it, now) for it in fitting[:DEVICES_SHOWN]}
    able = [it for it in fitting if it.is_healthy]
    ahead = f"{place - 1} ahead of it" if place > 1 else "it is next"
    if not able:
        first = fitting[0]
        which = f"{first.device_id} ({first.situation})"
        reason = f"all {len(fitting)} devices that match are out of service, such as {which}"
        if len(fitting) == 1:
            reason = f"the device that matches is out of service: {which}"
        return Explanation(reason, place, devices=_plain(devices))
    limit = scheduling.limit_reached(Draft(state, now), job.account)
    if limit:
        return Explanation(limit, place, devices=_plain(devices))
    if job.elsewhere_until is not None:
        return _avoiding(state, job, able, now, Explanation(ahead, place, devices=_plain(devices)))
    estimate_s = _estimate_s(state, job, able, place, now)
    return Explanation(f"{_in_use(able)}; {ahead}", place, estimate_s, _plain(devices))


def _avoiding(
    state: State, job: RunJob, able: list[Device], now: float, known: Explanation
) -> Explanation:
    """Return what is known with why a job is not tried again where it failed."""
    left_s = max(0.0, (job.elsewhere_until or now) - now)
    others = [it for it in able if not job.avoids(it.device_id)]
    estimate_s = left_s + _estimate_s(state, job, able, known.position, now)
    if others:
        estimate_s = min(estimate_s, _estimate_s(state, job, others, known.position, now))
    where = f"{_in_use(others)}; " if others else "no other device that matches is there now; "
    text = f"{where}tried again where it failed ({', '.join(job.shunned)}) in {left_s:.0f} s"
    return replace(known, reason=f"{text}; {known.reason}", estimate_s=estimate_s)


def _in_use(devices: list[Device]) -> str:
    if len(devices) > 1:
        return f"{len(devices)} devices that match are in use"
    return "the device that matches is in use"


def _estimate_s(state: State, job: RunJob, able: list[Device], place: int, now: float) -> float:
    """Return when place `place` comes, if each device is used to its limit and each ahead has this one's limit."""
    term_s = state.limits.term_of(job.limit_s)
    free_s = [_free_in_s(state, device, now) for device in able]
    heapq.heapify(free_s)
    played = min(place - 1, PLACES_PLAYED)
    for _ in range(played):
        heapq.heapreplace(free_s, free_s[0] + term_s)
    return free_s[0] + term_s * (place - 1 - played) / len(able)


def _free_in_s(state: State, device: Device, now: float) -> float:
    """Return within how many seconds a device is free at the latest."""
    lease = state.leases.get(device.lease_id) if device.lease_id is not None else None
    if lease is not None:
        return max(0.0, lease.expires_at - now)
    if device.use is Use.CLEANING and device.use_until is not None:
        return max(0.0, device.use_until - now)
    return 0.0


def _situation(state: State, device: Device, now: float) -> str:
    lease = state.leases.get(device.lease_id) if device.lease_id is not None else None
    if lease is None:
        return device.situation
    left_s = max(0.0, lease.expires_at - now)
    return f"{device.situation} by {lease.holder or 'somebody'}, at most {left_s:.0f} s more"


def _ahead(job: RunJob, group: Group, line: list[Entry], has_less: bool) -> int:
    """Return how many of a group go before a job."""
    priority, name = group
    if priority != -job.priority:
        return len(line) if priority < -job.priority else 0
    if name == job.account:
        return bisect.bisect_left(line, (job.queued_at, job.key))
    if has_less:
        return len(line)
    return 0


def _share(draft: Draft, name: str) -> float:
    return scheduling.account(draft, name).share_s(draft.now, draft.limits.half_life_s)


def _share_a_device(state: State, text: str, mine: Mapping[DeviceId, None]) -> bool:
    theirs = state.matching.of(state.queue.demands[text])
    few, many = sorted((mine, theirs), key=len)
    return any(it in many for it in few)


def _plain(devices: Mapping[DeviceId, str]) -> dict[str, str]:
    return {str(key): text for key, text in devices.items()}
