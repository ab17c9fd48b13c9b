"""``farm store``: how full the tracker's store is."""

from __future__ import annotations

from dataclasses import asdict

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.output import Output, output_option
from farm.cli.text import size


@click.command("store")
@tracker_option
@output_option
def command(tracker: str | None, output: Output) -> None:
    """Show how full the store is, and what of it must stay.

    Blobs that were not used for longest are evicted when room is needed. What builds, jobs, kept results and sessions
    need stays, and so does what was used in the last ten minutes. `farm up --store-limit` sets the limit.

    \b
    Example:
      farm store

    \b
    JSON: {"blobs", "used_bytes", "claimed_bytes", "limit_bytes", "pinned_bytes", "evicted_blobs", "evicted_bytes"}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        info = client.store_usage()
    part = f" ({100 * info.used_bytes / info.limit_bytes:.0f} %)" if info.limit_bytes else ""
    lines = [
        f"{size(info.used_bytes)} of {size(info.limit_bytes)}{part} in {info.blobs} blobs",
        f"{size(info.pinned_bytes)} needed now by builds, jobs, kept results and sessions",
        f"{size(info.evicted_bytes)} in {info.evicted_blobs} blobs evicted since the tracker's start",
    ]
    if info.claimed_bytes:
        lines.append(f"{size(info.claimed_bytes)} being uploaded")
    output.result(asdict(info), "\n".join(lines))
