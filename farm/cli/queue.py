"""``farm queue`` and ``farm jobs``: many jobs.

Owns: those tables. Does not own: their order in the queue, which is the tracker's.

Invariant: jobs are shown in the order in which they are expected to run (`queue`), or newest first (`jobs`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.job import job_json, place
from farm.cli.output import Output, output_option, table
from farm.cli.text import printable, since, span, when
from farm.core.limits import MAX_LISTED_JOBS
from farm.errors import NotFound

if TYPE_CHECKING:
    from farm.client import Client, JobInfo, Why

MAX_EXPLAINED = 200


@click.command("queue")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_EXPLAINED),
    default=50,
    show_default=True,
    help="At most so many jobs.",
)
@click.option("--account", default="", help="Only those of one account.")
@tracker_option
@output_option
def queue(limit: int, account: str, tracker: str | None, output: Output) -> None:
    """Show jobs that have not ended, in the order of the queue.

    What runs comes first, then what waits, each with what it waits for.

    \b
    Example:
      farm queue --account kernels

    \b
    JSON: {"jobs": [{"position": null if it runs, "estimate_s": null if unknown, "reason",
           "job": as in `farm get`}], "total": how many have not ended, up to 1000}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        open_jobs = client.jobs(account=account, limit=MAX_LISTED_JOBS)
        first = sorted(open_jobs, key=lambda j: (_waits(j), -j.priority, j.submitted_at))
        rows = [(job, why) for job in first[:limit] if (why := _why(client, job)) is not None]
    rows.sort(key=lambda row: (_waits(row[0]), row[1].position or math.inf))
    value = {
        "jobs": [
            {
                "position": why.position,
                "estimate_s": why.estimate_s,
                "reason": why.reason,
                "job": job_json(job),
            }
            for job, why in rows
        ],
        "total": len(open_jobs),
    }
    output.result(value, _queue_text(rows, len(open_jobs)))


@click.command("jobs")
@click.option("--all", "ended", is_flag=True, help="Those that have ended too.")
@click.option("--account", default="", help="Only those of one account.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_LISTED_JOBS),
    default=100,
    show_default=True,
    help="At most so many.",
)
@tracker_option
@output_option
def jobs(ended: bool, account: str, limit: int, tracker: str | None, output: Output) -> None:
    """List jobs, newest first.

    \b
    Example:
      farm jobs --all --limit 20

    \b
    JSON: {"jobs": [as `farm get`]}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        found = client.jobs(account=account, include_ended=ended, limit=limit)
    header = (
        *("JOB", "STATE", "OUTCOME", "VERDICT", "FUNCTION", "DEVICE", "ACCOUNT", "PRIORITY"),
        *("ATTEMPTS", "SUBMITTED"),
    )
    rows = [
        (
            job.job_id,
            job.state,
            job.outcome or "-",
            job.verdict or "-",
            printable(job.symbol),
            place(job),
            printable(job.account),
            str(job.priority),
            str(len(job.attempts)),
            when(job.submitted_at),
        )
        for job in found
    ]
    nothing = "no jobs" if ended else "no jobs that have not ended; --all shows the others"
    output.result(
        {"jobs": [job_json(job) for job in found]}, table(header, rows) if rows else nothing
    )


def _waits(job: JobInfo) -> bool:
    return job.state not in ("building", "running")


def _why(client: Client, job: JobInfo) -> Why | None:
    """Return what a job waits for, None if it was forgotten meanwhile."""
    try:
        return client.job(job.job_id).why()
    except NotFound:
        return None


def _queue_text(rows: list[tuple[JobInfo, Why]], total: int) -> str:
    if not rows:
        return "the queue is empty"
    header = (
        *("PLACE", "JOB", "STATE", "PRIORITY", "ACCOUNT", "FUNCTION", "DEVICE", "SINCE", "STARTS"),
        "WHY",
    )
    lines = [
        (
            str(why.position) if why.position else "-",
            job.job_id,
            job.state,
            str(job.priority),
            printable(job.account),
            printable(job.symbol),
            place(job),
            since(job.submitted_at),
            f"in about {span(why.estimate_s)}"
            if why.position and why.estimate_s is not None
            else "-",
            printable(why.reason),
        )
        for job, why in rows
    ]
    more = [f"and {total - len(rows)} more"] if total > len(rows) else []
    return "\n".join([table(header, lines), *more])
