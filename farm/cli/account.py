"""``farm account``: what accounts use and may use.

Owns: those commands. Does not own: what a limit does, which is the tracker's.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.output import Output, output_option, table
from farm.cli.spans import seconds
from farm.cli.text import printable, span
from farm.core.limits import MAX_COUNT

if TYPE_CHECKING:
    from farm.client.accounts import AccountInfo


@click.group("account")
def command() -> None:
    """Show what accounts use, and set what each may use.

    \b
    Example:
      farm account list
      farm account limit ci --devices 2 --queued 500 --device-seconds 7200 --per 1d
    """  # noqa: D301 - click's mark


@command.command("list")
@tracker_option
@output_option
def list_(tracker: str | None, output: Output) -> None:
    """List accounts that use something or have limits.

    USED fades by half every hour; the account with the least of it goes first. The limits are those of the account
    itself.

    \b
    Example:
      farm account list

    \b
    JSON: {"accounts": [{"name", "devices", "queued", "usage_s", "max_devices", "max_queued",
           "max_device_seconds", "window_s", "window_used_s", "window_left_s", "waits_for"}]},
          a limit that is not set is null
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        found = client.accounts()
    header = ("ACCOUNT", "DEVICES", "WAITING", "USED", "DEVICE-SECONDS", "WINDOW ENDS", "WAITS FOR")
    rows = [
        (
            printable(it.name),
            _of(it.devices, it.max_devices),
            _of(it.queued, it.max_queued),
            span(it.usage_s),
            _budget(it),
            f"in {span(it.window_left_s)}" if it.window_left_s else "-",
            printable(it.waits_for) or "-",
        )
        for it in found
    ]
    output.result(
        {"accounts": [asdict(it) for it in found]},
        table(header, rows) if rows else "no account uses anything or has limits",
    )


@command.command("limit")
@click.argument("account", metavar="ACCOUNT")
@click.option("--devices", type=click.IntRange(0, MAX_COUNT), help="At once; more wait.")
@click.option("--queued", type=click.IntRange(0, MAX_COUNT), help="Waiting; more are refused.")
@click.option(
    "--device-seconds",
    type=click.FloatRange(min=0),
    help="In each window; once used, what comes waits for the next.",
)
@click.option(
    "--per", "window_s", callback=seconds, metavar="SPAN", help="The window.  [default: 1d]"
)
@tracker_option
@output_option
def limit(
    account: str,
    devices: int | None,
    queued: int | None,
    device_seconds: float | None,
    window_s: float,
    tracker: str | None,
    output: Output,
) -> None:
    """Set what an account may have, in place of what was set before; without options, take its limits away.

    Nothing that runs is ended. Only admins may do this.

    \b
    Example:
      farm account limit ci --devices 2 --device-seconds 7200 --per 1d

    \b
    JSON: as one of `farm account list`
    """  # noqa: D301 - click's mark
    if window_s and device_seconds is None:
        raise click.UsageError("--per is the window of --device-seconds; give both")
    with connect(tracker) as client:
        info = client.limit_account(
            account,
            devices=devices,
            queued=queued,
            device_seconds=device_seconds,
            window_s=window_s,
        )
    words = [
        *([f"{info.max_devices} devices at once"] if info.max_devices is not None else []),
        *([f"{info.max_queued} waiting"] if info.max_queued is not None else []),
        *([f"{_budget(info)} device-seconds"] if info.max_device_seconds is not None else []),
    ]
    output.result(asdict(info), f"{printable(info.name)}: {', '.join(words) or 'no limits'}")


def _of(has: int, most: int | None) -> str:
    return str(has) if most is None else f"{has} of {most}"


def _budget(info: AccountInfo) -> str:
    if info.max_device_seconds is None:
        return "-"
    return f"{info.window_used_s:.0f} of {info.max_device_seconds:g} in {span(info.window_s)}"
