"""CPU time of a farm's processes by what they do: a figure that says the same on a busy machine.

Owns: finding the processes below this one, and telling their parts. Does not own: what is done meanwhile.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PARTS = (
    (b"farm_tracker", "tracker"),
    (b"--role\0build", "builds"),
    (b"--role\0session", "measures"),
    (b"farm_agents", "agents"),
    (b"bwrap", "sandboxes"),
)
"""What is in a command line, and what that process does; the first that fits."""


def cpu_s() -> Mapping[str, float]:
    """Return the CPU seconds of this process and of all below it so far, by part; what has ended counts too.

    What an agent's own children took that have ended is that of its sandboxes; zygotes live as long as it.
    """
    parents, times = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(folder.name)] = int(fields[1])
        own, ended = (sum(map(int, fields[at : at + 2])) / TICKS for at in (11, 13))
        times[int(folder.name)] = (own, ended)
    found: dict[str, float] = defaultdict(float)
    for pid, (own, ended) in times.items():
        if _is_below(pid, parents):
            part = _part(pid)
            found[part] += own
            found["sandboxes" if part == "agents" else part] += ended
    found["client"] = sum(os.times()[:2])
    return found


def since(before: Mapping[str, float]) -> dict[str, float]:
    """Return what each part has taken since."""
    return {part: seconds - before.get(part, 0.0) for part, seconds in cpu_s().items()}


def _is_below(pid: int, parents: Mapping[int, int]) -> bool:
    own = os.getpid()
    while pid and pid != own:
        pid = parents.get(pid, 0)
    return pid == own


def _part(pid: int) -> str:
    if pid == os.getpid():
        return "client"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "other"
    return next((part for word, part in PARTS if word in command), "other")
