"""``farm acquire``, ``farm extend`` and ``farm release``: a device held without a process.

Owns: those commands. Does not own: leases, which are the tracker's, or sessions (`farm.client.session`).

Invariant: nothing here renews a lease; it ends by its time or by `release`. Its secret is kept in a file that only its
owner can read.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import socket
from pathlib import Path

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.devices import device_json
from farm.cli.output import Output, output_option
from farm.cli.run import check_number
from farm.cli.text import span
from farm.core.clock import SystemClock
from farm.core.limits import MAX_HOLDER_BYTES, MAX_NUMBER, MAX_TTL_S, MAX_WAIT_S, MIN_TTL_S
from farm.errors import InvalidInput

SECRET_VARIABLE = "FARM_LEASE_TOKEN"
MAX_KEPT_BYTES = 1000
KEPT_S = 86_400.0
"""Longer than any lease that is not extended."""

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
    type=click.IntRange(0, MAX_NUMBER),
    help="As `farm acquire` said, to be sure that it is that one.  [default: the lease's]",
)

_secret_option = click.option(
    "--lease-token",
    default="",
    help="Of a lease that another acquired; better in FARM_LEASE_TOKEN. Operators need none.",
)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


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

    Nobody else gets it meanwhile, and no process needs to stay. Prints the lease's id and epoch; its secret is kept in
    a file of yours, for `farm extend` and `farm release`. The device is free again when the time is over.

    \b
    Example:
      farm acquire kind=ea --ttl 300
      farm run kernels.farm layer --random 1 --lease lease-4f0c21b79a3d5e80

    \b
    JSON: {"lease_id", "epoch", "lease_token": a secret, "remaining_s", "device": as in `farm devices`}
    """  # noqa: D301 - click's mark
    holder = holder or _myself()
    with output.steps("waiting") as steps, connect(tracker) as client:
        steps.say("waiting for a device")
        held = client.hold(selector, wait_s=wait_s, ttl_s=ttl_s, holder=holder)
    _keep(held.lease_id, held.epoch, held.lease_token)
    value = {
        "lease_id": held.lease_id,
        "epoch": held.epoch,
        "lease_token": held.lease_token,
        "remaining_s": held.remaining_s,
        "device": device_json(held.device),
    }
    text = (
        f"{held.lease_id}, epoch {held.epoch}: {held.device.device_id} for {span(held.remaining_s)}\n"
        f"  use it:       farm run FILE.farm FUNCTION --random 1 --lease {held.lease_id}\n"
        f"  longer:       farm extend {held.lease_id} --ttl {ttl_s:g}\n"
        f"  give it back: farm release {held.lease_id}"
    )
    output.result(value, text)


@click.command("extend")
@click.argument("lease_id", metavar="LEASE")
@_ttl_option
@_epoch_option
@_secret_option
@tracker_option
@output_option
def extend(
    lease_id: str,
    ttl_s: float,
    epoch: int | None,
    lease_token: str,
    tracker: str | None,
    output: Output,
) -> None:
    """Let a lease last longer: --ttl seconds from now.

    \b
    Example:
      farm extend lease-4f0c21b79a3d5e80 --ttl 600

    \b
    JSON: {"lease_id", "remaining_s"}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        kept_epoch, kept_token = kept(lease_id)
        remaining_s = client.extend(
            lease_id, ttl_s, kept_epoch if epoch is None else epoch, lease_token or kept_token
        )
    value = {"lease_id": lease_id, "remaining_s": remaining_s}
    output.result(value, f"{lease_id}: {span(remaining_s)} from now")


@click.command("release")
@click.argument("lease_id", metavar="LEASE")
@_epoch_option
@_secret_option
@tracker_option
@output_option
def release(
    lease_id: str, epoch: int | None, lease_token: str, tracker: str | None, output: Output
) -> None:
    """Give a lease's device back.

    \b
    Example:
      farm release lease-4f0c21b79a3d5e80

    \b
    JSON: {"lease_id"}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        kept_epoch, kept_token = kept(lease_id)
        client.release(lease_id, kept_epoch if epoch is None else epoch, lease_token or kept_token)
    _forget(lease_id)
    output.result({"lease_id": lease_id}, f"{lease_id}: released")


def _myself() -> str:
    """Return ``USER@HOST``, as far as they are known and short enough."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # of a user id without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}".encode()[:MAX_HOLDER_BYTES].decode(errors="ignore")


def _folder() -> Path:
    from farm.cli.up import default_data_dir

    return default_data_dir() / "leases"


def _keep(lease_id: str, epoch: int, lease_token: str) -> None:
    """Keep a lease's secret for later commands; forget those that ended long ago."""
    if not _ID.fullmatch(lease_id):
        return
    from farm.core.files import write_atomic  # readable by its owner alone

    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in folder.iterdir():
        with contextlib.suppress(OSError):
            if SystemClock().wall() - old.stat().st_mtime > KEPT_S:
                old.unlink()
    content = json.dumps({"epoch": epoch, "lease_token": lease_token})
    write_atomic(folder / lease_id, content.encode())


def kept(lease_id: str) -> tuple[int | None, str]:
    """Return epoch and secret of a lease, from FARM_LEASE_TOKEN or as acquired here; None and nothing if unknown."""
    if not _ID.fullmatch(lease_id):
        raise InvalidInput(f"lease: malformed id ({lease_id[:80]!r}); see `farm who`")
    given = os.environ.get(SECRET_VARIABLE, "")
    try:
        value = json.loads((_folder() / lease_id).read_bytes()[:MAX_KEPT_BYTES])
        return int(value["epoch"]), given or str(value["lease_token"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # a damaged one helps nobody
        return None, given


def _forget(lease_id: str) -> None:
    (_folder() / lease_id).unlink(missing_ok=True)
