"""Whether the host killed something of a child because the host itself ran out of memory.

Owns: counting such kills, and what they say about a child's failure. Does not own: a child's own limit on memory
(`farm_agents.sandbox.cgroups`), or what follows for an attempt.

Invariant: a child that reached its own limit is never excused; where nothing counts the kills of this child alone, only
a death by SIGKILL is, and what is told says that it is not certain; where nothing counts at all, that is told too. What
keeps a child's sandbox open is not in its control group: if that ended by itself, the count of the host decides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from farm_agents.sandbox.cgroups import Group, count, has_count

_HOST = Path("/proc/vmstat")
CERTAIN = "the host ran out of memory and killed it, though it was below its own limit"
UNCERTAIN = (
    "it was killed while the host ran out of memory; without a control group for memory this host cannot tell "
    "whether it was the cause"
)
FELL = "its sandbox was ended while the host ran out of memory"
UNKNOWN = "whether the host ran out of memory, this machine does not tell"


class Starvation:
    """Counts what was killed for want of memory while one child lives.

    Parameters
    ----------
    group
        The child's control group; None if it has none. One that counts memory tells of this child alone. Else the
        count is that of the whole host, which may be absent too: then nothing is ever excused.
    fell
        Tells whether the child's sandbox ended by itself.
    """

    def __init__(self, group: Group | None, fell: Callable[[], bool] = lambda: False) -> None:
        self._group = group if group is not None and group.counts_memory else None
        self._fell = fell
        self._last: int | None = None
        self._seen = self._count()
        self._host = count(_HOST, "oom_kill")

    @property
    def is_blind(self) -> bool:
        """Whether nothing on this machine counts what is killed for want of memory."""
        return self._group is None and not has_count(_HOST, "oom_kill")

    def close(self) -> None:
        """Count for the last time: the group is about to be removed."""
        self._last = self._count()

    def excuse(self, signal: str) -> str:
        """Return why the host is to blame for a failure that was seen now; empty: it is not.

        Parameters
        ----------
        signal
            What ended the process that failed, such as ``SIGKILL``; empty if that is not known.
        """
        kills = self._count() if self._last is None else self._last
        is_new, self._seen = kills > self._seen, kills
        if not is_new:
            fell = signal == "SIGKILL" and self._fell() and count(_HOST, "oom_kill") > self._host
            return FELL if fell else ""
        if self._group is not None:
            return CERTAIN
        return UNCERTAIN if signal == "SIGKILL" else ""

    def _count(self) -> int:
        return count(_HOST, "oom_kill") if self._group is None else self._group.host_kills()
