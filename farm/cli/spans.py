"""Spans of time and sizes as people write them on the command line.

Owns: reading them. Does not own: showing them (`farm.cli.text`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

_SPAN = re.compile(r"(?P<count>[0-9]{1,6})(?P<unit>[smhdw])")
_SIZE = re.compile(r"(?P<count>[0-9]{1,9})(?P<unit>[KMGT]?)(iB)?")
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds(_context: click.Context, _param: click.Parameter, value: str | None) -> float:
    """Return the seconds of a span: a number and s, m, h, d or w; 0 if it was left out. A callback of options."""
    if value is None:
        return 0.0
    match = _SPAN.fullmatch(value)
    if match is None:
        import click

        raise click.BadParameter(f"{value[:40]!r} is no span; use one such as 12h or 30d")
    return float(int(match["count"]) * _SECONDS[match["unit"]])


def seconds_or_none(
    context: click.Context, param: click.Parameter, value: str | None
) -> float | None:
    """Return the seconds of a span; None if it was left out. A callback of options."""
    return None if value is None else seconds(context, param, value)


def size_bytes(_context: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of a size: a number and K, M, G or T, in powers of 1,024. A callback of options."""
    if value is None:
        return None
    match = _SIZE.fullmatch(value)
    if match is None or int(match["count"]) == 0:
        import click

        raise click.BadParameter(f"{value[:40]!r} is no size; use one such as 500M or 20G")
    return int(match["count"]) * _BYTES[match["unit"]]
