"""Rows of run jobs and their attempts.

Owns: the form of each column of these two tables. Does not own: tables and transactions (`store`).

Invariant: as of `rows`; a wall clock that was set back never makes a wait longer than it was meant to be.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from farm.core.digest import Digest, canonical_json
from farm.core.ids import AgentId, AttemptId, DeviceId, Epoch, JobId, LeaseId
from farm.target import Selector
from farm_tracker.rows import failure_of, failure_text, on_clock, on_wall
from farm_tracker.state.demand import Variant
from farm_tracker.state.run import (
    LogPart,
    Outcome,
    RunAttempt,
    RunAttemptState,
    RunJob,
    RunState,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farm_tracker.rows import Row

MAX_DELAY_S = 600.0
"""How long a job waits at most before it is tried again, whatever a wall clock that was set back says."""

_RUN_STATES = {it.value: it for it in RunState}
_ATTEMPT_STATES = {it.value: it for it in RunAttemptState}

parse_selector = lru_cache(4096)(Selector.parse)
"""Thousands of jobs have few selectors; one value for each text keeps memory small."""


def job_row(job: RunJob, now: float, wall: float) -> Row:
    """Return the row of a job."""
    return {
        "job_id": job.job_id,
        "account": job.account,
        "client_key": job.client_key,
        "content": job.content,
        "selector": str(job.selector),
        "run": job.run,
        "limit_s": job.limit_s,
        "priority": job.priority,
        "queue_limit_s": job.queue_limit_s,
        "cancel_when_unwatched": job.cancel_when_unwatched,
        "queued_wall": on_wall(job.queued_at, now, wall),
        "queue_until_wall": on_wall(job.queue_until, now, wall),
        "infra_left": job.infra_left,
        "lost_left": job.lost_left,
        "state": job.state.value,
        "outcome": job.outcome.value if job.outcome else "",
        "verdict": job.verdict.value if job.verdict else "",
        "result": job.result,
        "failure": failure_text(job.failure),
        "attempt_id": job.attempt_id or "",
        "attempt_ids": _json(job.attempt_ids),
        "lost_devices": _json(job.lost_devices),
        "shunned": _json(job.shunned),
        "log": _log_text(job.log),
        "log_bytes": job.log_bytes,
        "ended_wall": on_wall(job.ended_at, now, wall),
        "forget_wall": on_wall(job.forget_at, now, wall),
        "changed_wall": wall,
        "not_before_wall": on_wall(job.not_before, now, wall) if job.not_before else None,
        "variants": _variants_text(job.variants),
        "elsewhere_until_wall": on_wall(job.elsewhere_until, now, wall),
    }


def job_of(row: Mapping[str, Any], now: float, wall: float) -> RunJob:
    """Return the job of a row; nobody watches it yet."""
    retain_s = row["forget_wall"] - row["changed_wall"]
    elsewhere_until = on_clock(row["elsewhere_until_wall"], now, wall)
    return RunJob(
        job_id=JobId(row["job_id"]),
        account=row["account"],
        client_key=row["client_key"],
        content=row["content"],
        selector=parse_selector(row["selector"]),
        run=row["run"],
        limit_s=row["limit_s"],
        priority=row["priority"],
        queue_limit_s=row["queue_limit_s"],
        cancel_when_unwatched=row["cancel_when_unwatched"],
        queued_at=min(now, now + row["queued_wall"] - wall),
        queue_until=now + min(row["queue_until_wall"] - wall, row["queue_limit_s"]),
        infra_left=row["infra_left"],
        lost_left=row["lost_left"],
        state=_RUN_STATES[row["state"]],
        outcome=Outcome(row["outcome"]) if row["outcome"] else None,
        verdict=Verdict(row["verdict"]) if row["verdict"] else None,
        result=row["result"],
        failure=failure_of(row["failure"]),
        attempt_id=AttemptId(row["attempt_id"]) if row["attempt_id"] else None,
        attempt_ids=_ids(row["attempt_ids"]),
        lost_devices=_ids(row["lost_devices"]),
        shunned=_ids(row["shunned"]),
        elsewhere_until=(
            None if elsewhere_until is None else min(now + MAX_DELAY_S, elsewhere_until)
        ),
        log=_log_of(row["log"]),
        log_bytes=row["log_bytes"],
        ended_at=on_clock(row["ended_wall"], now, wall),
        forget_at=now + min(row["forget_wall"] - wall, retain_s),
        not_before=min(now + MAX_DELAY_S, on_clock(row["not_before_wall"], now, wall) or 0.0),
        variants=_variants_of(row["variants"]),
        story=(f"{now:.3f} {row['state']}: loaded from the store",),
    )


def attempt_row(attempt: RunAttempt, now: float, wall: float) -> Row:
    """Return the row of an attempt."""
    return {
        "attempt_id": attempt.attempt_id,
        "job_id": attempt.job_id,
        "lease_id": attempt.lease_id,
        "device_id": attempt.device_id,
        "agent_id": attempt.agent_id,
        "instance_id": attempt.instance_id,
        "epoch": attempt.epoch,
        "state": attempt.state.value,
        "result": attempt.result,
        "failure": failure_text(attempt.failure),
        "log_chunks": attempt.log_chunks,
        "started_wall": on_wall(attempt.started_at, now, wall),
        "ended_wall": on_wall(attempt.ended_at, now, wall),
    }


def attempt_of(row: Mapping[str, Any], now: float, wall: float) -> RunAttempt:
    """Return the attempt of a row."""
    return RunAttempt(
        attempt_id=AttemptId(row["attempt_id"]),
        job_id=JobId(row["job_id"]),
        lease_id=LeaseId(row["lease_id"]),
        device_id=DeviceId(row["device_id"]),
        agent_id=AgentId(row["agent_id"]),
        instance_id=row["instance_id"],
        epoch=Epoch(row["epoch"]),
        started_at=now + row["started_wall"] - wall,
        state=_ATTEMPT_STATES[row["state"]],
        result=row["result"],
        failure=failure_of(row["failure"]),
        log_chunks=row["log_chunks"],
        ended_at=on_clock(row["ended_wall"], now, wall),
    )


def _log_text(log: tuple[LogPart, ...]) -> str:
    if not log:
        return ""
    parts = [
        [it.attempt_id, *([it.blob.sha256, it.blob.size_bytes] if it.blob else [])] for it in log
    ]
    return _json(parts)


def _log_of(text: str) -> tuple[LogPart, ...]:
    if not text:
        return ()
    return tuple(
        LogPart(AttemptId(attempt_id), Digest(*blob) if blob else None)
        for attempt_id, *blob in json.loads(text)
    )


def _variants_text(variants: tuple[Variant, ...]) -> str:
    return _json([[it.target, it.family, list(it.requires)] for it in variants])


@lru_cache(4096)
def _variants_of(text: str) -> tuple[Variant, ...]:
    parts = json.loads(text) if text else []
    return tuple(Variant(target, family, tuple(requires)) for target, family, requires in parts)


def _ids(text: str) -> tuple[Any, ...]:
    return tuple(json.loads(text)) if text else ()


def _json(value: tuple[Any, ...] | list[Any]) -> str:
    return canonical_json(value).decode() if value else ""
