"""``farm acquire``, ``farm extend`` and ``farm release``: a device held without a process.

Owns: those commands. Does not own: leases, which are the tracker's, or sessions (`farm.client.session`).

Invariant: nothing here renews a lease; it ends by its time or by `release`.
"""

from __future__ import annotations

import getpass
import socket

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.devices import device_json
from farm.cli.output import Output, output_option
from farm.cli.run import MAX_WAIT_S, check_number
from farm.cli.text import span

MIN_TTL_S, MAX_TTL_S = 1.0, 600.0
MAX_HOLDER_BYTES = 128

_ttl_option = click.option(
    "--ttl",
    "ttl_s",
    metavar="SECONDS",
    type=click.FloatRange(MIN_TTL_S, MAX_TTL_S),
    callback=check_number,
    default=60.0,
    show_default=True,
    help="How long it lasts from now.",
)
_epoch_option = click.option(
    "--epoch",
    type=click.IntRange(min=0),
    help="As `farm acquire` said, to be sure that it is that one.  [default: the lease's]",
)


@click.command("acquire")
@click.argument("selector", default="")
@_ttl_option
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(0, MAX_WAIT_S),
    callback=check_number,
    default=60.0,
    show_default=True,
    help="How long to wait for a device that is free.",
)
@click.option("--holder", default="", help="Shown to others.  [default: USER@HOST]")
@tracker_option
@output_option
def acquire(
    selector: str, ttl_s: float, wait_s: float, holder: str, tracker: str | None, output: Output
) -> None:
    """Take a device for a while.

    Nobody else gets it meanwhile, and no process needs to stay. Prints the lease's id and epoch. The device is free
    again when the time is over: extend it before that, or release it
    earlier.

    \b
    Example:
      farm acquire kind=ea --ttl 300

    \b
    JSON: {"lease_id", "epoch", "remaining_s", "device": as in `farm devices`}
    """  # noqa: D301 - click's mark
    holder = holder or _myself()
    with output.steps("waiting") as steps, connect(tracker) as client:
        steps.say("waiting for a device")
        held = client.hold(selector, wait_s=wait_s, ttl_s=ttl_s, holder=holder)
    value = {
        "lease_id": held.lease_id,
        "epoch": held.epoch,
        "remaining_s": held.remaining_s,
        "device": device_json(held.device),
    }
    text = (
        f"{held.lease_id}, epoch {held.epoch}: {held.device.device_id} for {span(held.remaining_s)}\n"
        f"  longer:       farm extend {held.lease_id} --ttl {ttl_s:g}\n"
        f"  give it back: farm release {held.lease_id}"
    )
    output.result(value, text)


@click.command("extend")
@click.argument("lease_id", metavar="LEASE")
@_ttl_option
@_epoch_option
@tracker_option
@output_option
def extend(
    lease_id: str, ttl_s: float, epoch: int | None, tracker: str | None, output: Output
) -> None:
    """Let a lease last longer: --ttl seconds from now.

    \b
    Example:
      farm extend lease-4f0c21b79a3d5e80 --ttl 600

    \b
    JSON: {"lease_id", "remaining_s"}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        remaining_s = client.extend(lease_id, ttl_s, epoch)
    value = {"lease_id": lease_id, "remaining_s": remaining_s}
    output.result(value, f"{lease_id}: {span(remaining_s)} from now")


@click.command("release")
@click.argument("lease_id", metavar="LEASE")
@_epoch_option
@tracker_option
@output_option
def release(lease_id: str, epoch: int | None, tracker: str | None, output: Output) -> None:
    """Give a lease's device back.

    \b
    Example:
      farm release lease-4f0c21b79a3d5e80

    \b
    JSON: {"lease_id"}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        client.release(lease_id, epoch)
    output.result({"lease_id": lease_id}, f"{lease_id}: released")


def _myself() -> str:
    """Return ``USER@HOST``, as far as they are known and short enough."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # of a user id without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}".encode()[:MAX_HOLDER_BYTES].decode(errors="ignore")
