"""The words in which a process that a kernel ends says where the kernel was.

Owns: those words. Does not own: who says them (`farm.runtime.lines`), or what is made of them.

Invariant: `read_place` of what ends with `words_for` gives its parts; a kernel may say them itself, of itself alone.
"""

from __future__ import annotations

import re
from pathlib import Path

_SAID = re.compile(
    rb"^farm-crash: (?P<symbol>\w{1,255}) at (?P<file>[^\n:]{1,255}):(?P<line>[0-9]{1,9})\n\Z", re.M
)
_LONGEST_BYTES = 1024


def words_for(symbol: str, file: str, line: int) -> str:
    """Return what is said of a crash in a line of a function's source, or of the function as it is printed."""
    return f"\nfarm-crash: {symbol} at {file}:{line}\n"


def size_of(log: Path) -> int:
    """Return how long a log is, in bytes; 0 if there is none yet."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def read_place(log: Path, since: int = 0) -> dict[str, str]:
    """Return ``symbol``, ``file`` and ``line`` of a crash that a log ends with; nothing if it ends otherwise.

    Parameters
    ----------
    since
        How long the log was before: what is older does not count.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(since, size_of(log) - _LONGEST_BYTES))
            match = _SAID.search(file.read())
    except OSError:
        return {}
    if match is None:
        return {}
    return {name: match[name].decode(errors="replace") for name in ("symbol", "file", "line")}
