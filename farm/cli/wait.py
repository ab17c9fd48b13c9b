"""``farm wait``, and waiting with progress and Ctrl-C for other commands.

Owns: what is shown meanwhile, and what an interrupt means for the job. Does not own: the waiting (`farm.client`).

Invariant: an interrupt ends this process, and the job only if the user said so; either way it is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.job import headline, job_argument, job_json
from farm.cli.output import Output, output_option
from farm.cli.run import check_number
from farm.cli.text import printable, span
from farm.core.limits import MAX_WAIT_S
from farm.errors import FarmError

if TYPE_CHECKING:
    from farm.cli.output import Steps
    from farm.client import Job, JobInfo

timeout_option = click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0, MAX_WAIT_S),
    callback=lambda context, param, value: value and check_number(context, param, value),
    help="How long to wait; the job goes on afterwards.  [default: as long as it takes]",
)


@click.command("wait")
@job_argument
@timeout_option
@tracker_option
@output_option
def command(job_id: str, timeout_s: float | None, tracker: str | None, output: Output) -> None:
    """Wait until a job has ended, and end with its exit code.

    Goes on while the tracker restarts. Ctrl-C ends the waiting, not the job.

    \b
    Exit codes: 0 it passed, 1 the kernel failed, 2 its input was rejected, 4 a time limit (of the kernel,
    of the queue, or --timeout), 5 cancelled, 6 the farm failed, 7 nobody can serve it.

    \b
    Example:
      farm wait job-4f0c21b79a3d5e80 --timeout 60

    \b
    JSON: as `farm get`
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        info = watch(client.job(job_id), output, timeout_s)
    output.result(job_json(info), headline(info))
    if info.failure is not None:
        raise info.failure


def watch(
    job: Job, output: Output, timeout_s: float | None = None, *, cancel_on_interrupt: bool = False
) -> JobInfo:
    """Wait for a job and show each step."""
    with _interrupts(job, cancel=cancel_on_interrupt), output.steps(job.job_id) as steps:
        return job.wait(timeout_s, _Follow(job, steps))


class _Follow:
    """Shows what changes of a job."""

    def __init__(self, job: Job, steps: Steps) -> None:
        self._job = job
        self._steps = steps
        self._last = ""

    def __call__(self, info: JobInfo) -> None:
        line = headline(info)
        if info.ended or line == self._last:
            return
        self._last = line
        self._steps.say(line + (self._place() if info.state == "queued" else ""))

    def _place(self) -> str:
        try:
            why = self._job.why()
        except FarmError:  # only an embellishment
            return ""
        place = f", place {why.position}" if why.position else ""
        about = f", about {span(why.estimate_s)}" if why.estimate_s is not None else ""
        return f"{place}{about}: {printable(why.reason)}"


@contextlib.contextmanager
def _interrupts(job: Job, *, cancel: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if cancel:
            job.cancel("interrupted at the command line")
            click.echo(f"{job.job_id} is being cancelled", err=True)
        else:
            click.echo(
                f"{job.job_id} goes on: `farm wait {job.job_id}` waits again, `farm cancel {job.job_id}` ends it",
                err=True,
            )
        raise
