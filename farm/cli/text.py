"""Words for people: points in time, spans, and texts of others that may hold anything.

Owns: their form. Does not own: tables and streams (`farm.cli.output`).

Invariant: what `printable` returns moves no cursor and changes no colour of a terminal.
"""

from __future__ import annotations

from datetime import UTC, datetime

from farm.core.clock import SystemClock


def printable(text: str, *, keep: str = "") -> str:
    """Return text with what a terminal would obey shown as escapes, except the characters in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def when(at: float | None) -> str:
    """Return seconds since the Unix epoch as local time, ``-`` for None."""
    if at is None:
        return "-"
    return datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def since(at: float) -> str:
    """Return how long ago something was, given in seconds since the Unix epoch."""
    return span(max(0.0, SystemClock().wall() - at))


def span(value_s: float | None) -> str:
    """Return ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 3 min``, ``4 d 1 h``; ``-`` for None."""
    if value_s is None:
        return "-"
    if value_s < 10:
        return f"{value_s:.1f} s"
    whole = round(value_s)
    for unit, below, size, small in (("d", "h", 86400, 3600), ("h", "min", 3600, 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {below}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def size(value_bytes: int) -> str:
    """Return ``0 B``, ``12 KiB``, ``3.4 GiB``."""
    value = float(value_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
