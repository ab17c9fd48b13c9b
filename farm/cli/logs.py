"""``farm logs``.

Owns: showing what a kernel printed. Does not own: following it across broken connections (`farm.client`).

Invariant: a terminal gets printable text only; a file or pipe gets the kernel's own bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.job import job_argument
from farm.cli.output import Output, output_option
from farm.cli.text import printable
from farm.core.limits import MAX_NUMBER

if TYPE_CHECKING:
    from farm.client import LogChunk


@click.command("logs")
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "--from",
    "first",
    metavar="CHUNK",
    type=click.IntRange(1, MAX_NUMBER),
    default=1,
    show_default=True,
    help="Number of the first chunk wanted.",
)
@tracker_option
@output_option
def command(job_id: str, follow: bool, first: int, tracker: str | None, output: Output) -> None:
    """Show what the kernel of a job printed.

    The log is kept in numbered chunks; following it goes on without a gap when the tracker restarts. Ctrl-C ends the
    reading, not the job.

    \b
    Example:
      farm logs job-4f0c21b79a3d5e80 --follow

    \b
    JSON: {"job_id", "chunks": [{"number", "text", "truncated", "attempt_id"}]}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        chunks = client.job(job_id).logs(follow=follow, first=first)
        if output.json:
            output.result({"job_id": job_id, "chunks": [_json(chunk) for chunk in chunks]}, "")
        else:
            _show(chunks)


def _show(chunks: Iterator[LogChunk]) -> None:
    stream = sys.stdout.buffer
    terminal = sys.stdout.isatty()
    for chunk in chunks:
        if terminal:
            text = printable(chunk.data.decode(errors="backslashreplace"), keep="\n\t")
            stream.write(text.encode())
        else:
            stream.write(chunk.data)
        stream.flush()
        if chunk.truncated:
            click.echo("log: cut here, at the job's limit; the rest was dropped", err=True)


def _json(chunk: LogChunk) -> dict[str, object]:
    return {
        "number": chunk.number,
        "text": chunk.data.decode(errors="backslashreplace"),
        "truncated": chunk.truncated,
        "attempt_id": chunk.attempt_id,
    }
