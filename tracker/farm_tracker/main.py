"""The tracker's process: ``python -m farm_tracker --data-dir D --listen 127.0.0.1:7460``.

Owns: its arguments, its log, its signals. Does not own: the server.

Invariant: the one line on standard output is the address; everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from farm.core.loop import run_service
from farm.errors import FarmError, InvalidInput
from farm.rpc.credentials import fingerprint_of
from farm_tracker.crash_points import POINTS
from farm_tracker.housekeeping import (
    DEFAULT_DEVICES_S,
    DEFAULT_JOBS_S,
    DEFAULT_RECORDS_S,
    Retention,
)
from farm_tracker.server import serve
from farm_tracker.state.model import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_LISTEN = "127.0.0.1:7460"
MIN_OFFLINE_S = 1.0
MAX_OFFLINE_S = 3600.0
LOG_FORMAT = "time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="farm_tracker", description="The tracker of a kernel farm."
    )
    parser.add_argument("--data-dir", required=True, help="folder of its store; made if absent")
    parser.add_argument("--listen", default=DEFAULT_LISTEN, help="host:port (default %(default)s)")
    parser.add_argument(
        "--database",
        default=os.environ.get("FARM_DATABASE", ""),
        help="URL of SQLAlchemy, such as postgresql+psycopg://USER@HOST/NAME; default: the environment's "
        "FARM_DATABASE, which no other user sees, so that it may hold a password, or a file in the data folder",
    )
    parser.add_argument(
        "--store-limit-bytes",
        type=int,
        default=0,
        help="what all blobs together may take; default: half of the disk, at most 64 GiB",
    )
    parser.add_argument(
        "--keep-jobs-s",
        type=float,
        default=DEFAULT_JOBS_S,
        help="seconds for which an ended job is kept, with its log and results (default %(default)g)",
    )
    parser.add_argument(
        "--keep-records-s",
        type=float,
        default=DEFAULT_RECORDS_S,
        help="seconds for which builds, events and unused entries of the build cache are kept (default %(default)g)",
    )
    parser.add_argument(
        "--keep-devices-s",
        type=float,
        default=DEFAULT_DEVICES_S,
        help="seconds for which a device that is offline is kept, with its agent (default %(default)g)",
    )
    parser.add_argument(
        "--plaintext", action="store_true", help="without TLS, for this machine alone"
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="without TLS even if other machines can connect: tokens can be stolen",
    )
    parser.add_argument(
        "--offline-after",
        type=float,
        default=Limits().offline_s,
        metavar="SECONDS",
        help="an agent silent for so long has lost what it held (default %(default)g); it is suspected after 0.4 of "
        "it, and sends ten heartbeats in it",
    )
    parser.add_argument(
        "--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"]
    )
    chosen = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=chosen.log_level, format=LOG_FORMAT)
    try:
        POINTS.arm(os.environ)
        limits = limits_of(chosen.offline_after)
        plain = chosen.plaintext or chosen.insecure
        for option in ("store_limit_bytes", "keep_jobs_s", "keep_records_s", "keep_devices_s"):
            value = getattr(chosen, option)
            if not value >= 0:  # what is no number would never be due, and hold back what is
                name = option.replace("_", "-")
                raise InvalidInput(
                    f"--{name}: {value:g} is out of range; use a number of at least 0"
                )
        return run_service(
            _run(
                chosen.data_dir,
                chosen.listen,
                tls=not plain,
                insecure=chosen.insecure,
                database=chosen.database,
                store_limit_bytes=chosen.store_limit_bytes,
                retention=Retention(
                    chosen.keep_records_s, chosen.keep_jobs_s, chosen.keep_devices_s
                ),
                limits=limits,
            )
        )
    except FarmError as error:
        print(f"farm_tracker: {error.message}", file=sys.stderr)
        return error.exit_code


def limits_of(offline_s: float) -> Limits:
    """Return the limits of a farm whose agents are lost after a silence.

    Parameters
    ----------
    offline_s
        1 to 3600 seconds.

    Raises
    ------
    InvalidInput
        It is out of range.
    """
    if not MIN_OFFLINE_S <= offline_s <= MAX_OFFLINE_S:
        raise InvalidInput(
            f"--offline-after: {offline_s:g} is out of range; use {MIN_OFFLINE_S:g} to {MAX_OFFLINE_S:g} seconds"
        )
    return Limits(heartbeat_s=0.1 * offline_s, suspect_s=0.4 * offline_s, offline_s=offline_s)


async def _run(data_dir: str, listen: str, **options: Any) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    gc.disable()  # what is loaded stays: looking through it again and again finds nothing
    server = await serve(data_dir, listen, **options)
    gc.freeze()
    gc.enable()
    print(server.address, flush=True)
    log.info("serving address=%s data_dir=%s", server.address, data_dir)
    if server.certificate:
        pin = fingerprint_of(server.certificate)
        port = server.address.rpartition(":")[2]
        log.info("others connect with: farm connect 'farm://TOKEN@HOST:%s?sha256=%s'", port, pin)
    stopped = asyncio.ensure_future(stopping.wait())
    ends: set[asyncio.Future[Any]] = {stopped, server.failed}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    await server.stop()
    if server.failed.done():
        raise server.failed.result()
    log.info("stopped")
    return 0
