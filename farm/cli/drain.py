"""``farm drain`` and ``farm resume``.

Owns: those commands. Does not own: what the states mean (`farm_tracker.state`).

Invariant: a device that is taken out of service has a reason that others can read.
"""

from __future__ import annotations

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.devices import device_json, devices_text
from farm.cli.output import Output, output_option
from farm.cli.run import check_number
from farm.core.limits import MAX_REASON_BYTES


def _check_reason(context: click.Context, param: click.Parameter, value: str) -> str:
    if not value.strip() or len(value.encode()) > MAX_REASON_BYTES:
        raise click.BadParameter(f"use 1 to {MAX_REASON_BYTES} bytes of text")
    return value


@click.command("drain")
@click.argument("selector")
@click.option("--reason", required=True, callback=_check_reason, help="Shown to those who wait.")
@click.option(
    "--for",
    "until_s",
    metavar="SECONDS",
    type=click.FloatRange(0),
    callback=check_number,
    default=0.0,
    help="Enable them again after so long.  [default: never]",
)
@click.option(
    "--maintenance", "verb", flag_value="maintenance", help="Somebody works on them meanwhile."
)
@click.option("--retire", "verb", flag_value="retire", help="They are not to come back.")
@tracker_option
@output_option
def drain(
    selector: str,
    reason: str,
    until_s: float,
    verb: str | None,
    tracker: str | None,
    output: Output,
) -> None:
    """Take devices out of service.

    They finish what runs and take nothing new. SELECTOR is as for `farm devices`; device_id=NAME is one device.
    `farm resume` is the way back.

    \b
    Example:
      farm drain device_id=shelf-1-cpu --reason "new fan" --for 3600
      farm drain rack=3 --reason "moves to the other room" --maintenance

    \b
    JSON: as `farm devices`
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        change = {"maintenance": client.maintenance, "retire": client.retire}
        devices = change.get(verb or "", client.drain)(selector, reason, until_s)
    output.result({"devices": [device_json(d) for d in devices]}, devices_text(devices))


@click.command("resume")
@click.argument("selector")
@click.option("--reason", default="", help="Kept with the event.")
@tracker_option
@output_option
def resume(selector: str, reason: str, tracker: str | None, output: Output) -> None:
    """Put devices back into service after `farm drain`.

    \b
    Example:
      farm resume device_id=shelf-1-cpu

    \b
    JSON: as `farm devices`
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        devices = client.resume(selector, reason)
    output.result({"devices": [device_json(d) for d in devices]}, devices_text(devices))
