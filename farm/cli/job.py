"""``farm get``, ``farm cancel`` and ``farm why``: one job; and how a job is shown.

Owns: those commands, the argument JOB, a job as JSON and as text. Does not own: waiting (`farm.cli.wait`), results
(`farm.cli.result`).

Invariant: a job in JSON has the same keys wherever it is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.output import Output, output_option, table
from farm.cli.text import printable, span, when

if TYPE_CHECKING:
    from farm.client import AttemptInfo, JobInfo, Why
    from farm.errors import FarmError

job_argument = click.argument("job_id", metavar="JOB")


@click.command("get")
@job_argument
@tracker_option
@output_option
def get(job_id: str, tracker: str | None, output: Output) -> None:
    """Show a job: how far it is, how it ended, and each try at it.

    Exit code 0 says only that the job is known; `farm wait` ends with the job's own.

    \b
    Example:
      farm get job-4f0c21b79a3d5e80

    \b
    JSON: {"job_id", "client_key", "account", "priority", "state", "outcome", "verdict", "selector",
           "function", "candidates", "artifact", "repeat", "limit_s", "submitted_at", "ended_at", "log_chunks",
           "error": null or {"code", "message", "details"}, "attempts": [{"attempt_id", "device_id",
           "agent_id", "epoch", "state", "error", "started_at", "ended_at"}]}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        info = client.job(job_id).status()
    output.result(job_json(info), job_text(info))


@click.command("cancel")
@job_argument
@click.option("--reason", default="", help="Kept with the job.")
@tracker_option
@output_option
def cancel(job_id: str, reason: str, tracker: str | None, output: Output) -> None:
    """End a job; one that has ended already stays as it is.

    Returns when the farm has promised to end it; `farm wait` waits until it has.

    \b
    Example:
      farm cancel job-4f0c21b79a3d5e80 --reason "wrong input"

    \b
    JSON: as `farm get`
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        info = client.job(job_id).cancel(reason)
    output.result(job_json(info), headline(info))


@click.command("why")
@job_argument
@tracker_option
@output_option
def why(job_id: str, tracker: str | None, output: Output) -> None:
    """Say what a job is waiting for.

    Shows its place in the queue, until about when, and what keeps each device that matches.

    \b
    Example:
      farm why job-4f0c21b79a3d5e80

    \b
    JSON: {"job_id", "reason", "position": null outside the queue, "estimate_s": null if unknown,
           "devices": {DEVICE: what keeps it from taking the job}}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        found = client.job(job_id).why()
    value = {
        "job_id": job_id,
        "reason": found.reason,
        "position": found.position,
        "estimate_s": found.estimate_s,
        "devices": dict(found.devices),
    }
    output.result(value, _why_text(job_id, found))


def job_json(job: JobInfo) -> dict[str, Any]:
    """Return a job for JSON."""
    return {
        "job_id": job.job_id,
        "client_key": job.client_key,
        "account": job.account,
        "priority": job.priority,
        "state": job.state,
        "outcome": job.outcome,
        "verdict": job.verdict,
        "selector": job.selector,
        "function": job.symbol,
        "candidates": list(job.candidates),
        "artifact": str(job.artifact) if job.artifact else None,
        "repeat": job.repeat,
        "limit_s": job.limit_s,
        "submitted_at": job.submitted_at,
        "ended_at": job.ended_at,
        "log_chunks": job.log_chunks,
        "error": _error_json(job.error),
        "attempts": [_attempt_json(attempt) for attempt in job.attempts],
    }


def _work(job: JobInfo) -> str:
    if job.candidates:
        return f"compares   {', '.join(map(printable, job.candidates))}"
    return f"function   {printable(job.symbol)}, repeat {job.repeat}"


def headline(job: JobInfo) -> str:
    """Return one line that says how far a job is."""
    device = _device(job)
    where = f" on {device}" if device else ""
    if not job.ended:
        again = f", attempts so far: {len(job.attempts)}" if job.attempts and not device else ""
        return f"{job.job_id}: {job.state}{where}{again}"
    verdict = f", {job.verdict}" if job.verdict else ""
    took = f" after {span(job.ended_at - job.submitted_at)}" if job.ended_at else ""
    return f"{job.job_id}: {job.outcome}{verdict}{where}{took}"


def place(job: JobInfo) -> str:
    """Return where a job runs or ran, else which devices would do."""
    return _device(job) or printable(job.selector) or "any"


def job_text(job: JobInfo) -> str:
    """Return all of a job for people."""
    lines = [
        headline(job),
        f"  {_work(job)}, limit {span(job.limit_s)}",
        f"  artifact   {job.artifact or '-'}",
        f"  device     {printable(job.selector) or 'any'}",
        f"  account    {printable(job.account) or '-'}, priority {job.priority}",
        f"  key        {printable(job.client_key) or '-'}",
        f"  submitted  {when(job.submitted_at)}, ended {when(job.ended_at)}",
        f"  log        {job.log_chunks} chunks",
    ]
    if job.error is not None:
        lines.append(f"  error      {_said(job.error)}")
    if job.attempts:
        header = ("ATTEMPT", "DEVICE", "AGENT", "EPOCH", "STATE", "STARTED", "TOOK", "ERROR")
        lines += ["", table(header, [_row(attempt) for attempt in job.attempts])]
    return "\n".join(lines)


def _device(job: JobInfo) -> str:
    """Return the device of the last attempt, nothing if it waits for another."""
    moved = job.state in ("submitted", "queued", "delayed")
    return job.attempts[-1].device_id if job.attempts and not moved else ""


def _row(attempt: AttemptInfo) -> tuple[str, ...]:
    began, ended = attempt.started_at, attempt.ended_at
    return (
        attempt.attempt_id,
        attempt.device_id,
        attempt.agent_id,
        str(attempt.epoch),
        attempt.state,
        when(began),
        span(ended - began if began and ended else None),
        _said(attempt.error) if attempt.error else "",
    )


def _said(error: FarmError) -> str:
    return f"{printable(error.details.get('code', error.code))}: {printable(error.message)}"


def _error_json(error: FarmError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    code = error.details.get("code", error.code)
    return {"code": code, "message": error.message, "details": dict(error.details)}


def _attempt_json(attempt: AttemptInfo) -> dict[str, Any]:
    return {
        "attempt_id": attempt.attempt_id,
        "device_id": attempt.device_id,
        "agent_id": attempt.agent_id,
        "epoch": attempt.epoch,
        "state": attempt.state,
        "error": _error_json(attempt.error),
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
    }


def _why_text(job_id: str, found: Why) -> str:
    lines = [f"{job_id}: {printable(found.reason)}"]
    if found.position is not None:
        about = f"about {span(found.estimate_s)}" if found.estimate_s is not None else "unknown"
        lines += [f"  place in the queue  {found.position}", f"  time until it runs  {about}"]
    if found.devices:
        rows = [(device, printable(cause)) for device, cause in found.devices.items()]
        lines += ["", table(("DEVICE", "WHAT KEEPS IT"), rows)]
    return "\n".join(lines)
