"""``farm who`` and ``farm events``: who holds what, and what happened.

Owns: those tables. Does not own: leases and events, which are the tracker's.

Invariant: events are shown in the order of their numbers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.output import Output, output_option, table
from farm.cli.text import printable, span, when
from farm.core.limits import MAX_NUMBER

if TYPE_CHECKING:
    from farm.client import EventInfo


@click.command("who")
@tracker_option
@output_option
def who(tracker: str | None, output: Output) -> None:
    """Show who holds which device, until about when, and for which job.

    \b
    Example:
      farm who

    \b
    JSON: {"leases": [{"lease_id", "device_id", "epoch", "holder", "account", "job_id", "remaining_s"}]}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        leases = sorted(client.leases(), key=lambda lease: lease.device_id)
    header = ("DEVICE", "HOLDER", "ACCOUNT", "JOB", "LEASE", "EPOCH", "LEFT")
    rows = [
        (
            lease.device_id,
            printable(lease.holder) or "-",
            printable(lease.account) or "-",
            lease.job_id or "-",
            lease.lease_id,
            str(lease.epoch),
            span(lease.remaining_s),
        )
        for lease in leases
    ]
    value = {"leases": [asdict(lease) for lease in leases]}
    output.result(value, table(header, rows) if rows else "nobody holds a device")


@click.command("events")
@click.option(
    "--after",
    metavar="NUMBER",
    type=click.IntRange(0, MAX_NUMBER),
    default=0,
    help="Only later ones.",
)
@click.option(
    "--last",
    metavar="COUNT",
    type=click.IntRange(1, MAX_NUMBER),
    default=50,
    show_default=True,
    help="At most so many of those that happened already.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@tracker_option
@output_option
def events(after: int, last: int, follow: bool, tracker: str | None, output: Output) -> None:
    """Show what happened on the farm, oldest first.

    \b
    Example:
      farm events --last 20 --follow

    \b
    JSON, without --follow: {"events": [{"number", "at", "kind", "subject", "text", "actor"}]};
    ask again with --after for later ones.
    """  # noqa: D301 - click's mark
    if follow and output.json:
        raise click.UsageError(
            "--follow has no end, and JSON is one document; repeat it with --after NUMBER instead"
        )
    with connect(tracker) as client:
        found = list(deque(client.events(after=after), maxlen=last))
        if not follow:
            value = {"events": [asdict(event) for event in found]}
            output.result(value, "\n".join(map(_line, found)) if found else "no events")
            return
        for event in found:
            click.echo(_line(event))
        seen = found[-1].number if found else after
        for event in client.events(after=seen, follow=True):
            click.echo(_line(event))


def _line(event: EventInfo) -> str:
    actor = f" (by {printable(event.actor)})" if event.actor else ""
    kind, subject = printable(event.kind), printable(event.subject)
    text = printable(event.text)
    return f"{event.number:>6}  {when(event.at)}  {kind:<20}  {subject:<24}  {text}{actor}"
