"""How commands reach a tracker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from farm.client import Client

_Command = TypeVar("_Command", bound=Callable[..., Any])


def tracker_option(command: _Command) -> _Command:
    """Add ``--tracker``."""
    option = click.option(
        "--tracker",
        metavar="HOST:PORT",
        help="Address of the tracker.  [default: FARM_TRACKER, else 127.0.0.1:7460]",
    )
    return option(command)


def connect(address: str | None) -> Client:
    """Connect to a tracker; raises TrackerUnreachable if nobody answers."""
    from farm import client

    return client.connect(address)
