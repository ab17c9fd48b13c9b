"""Facts and powers over processes, from /proc and prctl (Linux).

Owns: who descends from whom, who carries a mark, killing them, death signals, resource limits.
Does not own: when any of it is done.

Invariant: a process id is only signalled in the moment that /proc showed it as what it is.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Iterable
from pathlib import Path

MARK = "KERNEL_FARM_WORKER"
"""Environment variable that every process below a zygote inherits: how orphans are found."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent dies; end at once if it is dead already."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent_pid:
        os._exit(0)


def set_name(name: str) -> None:
    """Name this process for ``ps`` and ``top``, at most 15 characters."""
    _LIBC.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def adopt_orphans() -> None:
    """Become the new parent of every descendant whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> list[int]:
    """Return the direct children of a process, dead and unwaited ones included."""
    return [child for child, parent in _parents().items() if parent == pid]


def own_children() -> list[int]:
    """Return the direct children of this process, which has one thread; dead and unwaited ones included.

    Notes
    -----
    The kernel keeps them as a list, which nobody shortens but this process when it waits: it is read whole, and without
    a look at every process of the host, as `children_of` takes it.
    """
    pid = os.getpid()
    try:
        listed = (_PROC / f"{pid}/task/{pid}/children").read_bytes()
    except OSError:  # a kernel that does not show it
        return children_of(pid)
    return [int(child) for child in listed.split()]


def descendants_of(pid: int) -> list[int]:
    """Return every process below `pid`, parents before their children."""
    parents = _parents()
    found = [pid]
    for ancestor in found:
        found.extend(child for child, parent in parents.items() if parent == ancestor)
    return found[1:]


def marked(mark: str) -> list[int]:
    """Return every living process whose environment carries this mark."""
    needle = f"{MARK}={mark}".encode()
    return [pid for pid in _parents() if needle in _read(_PROC / str(pid) / "environ").split(b"\0")]


def kill(pids: Iterable[int]) -> None:
    """SIGKILL each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def thread_count() -> int:
    """Return how many threads this process has."""
    return len(list(Path("/proc/self/task").iterdir()))


def limit_resources(address_space_bytes: int, file_bytes: int) -> None:
    """Set what no kernel or compiler may pass: no core files, and generous sizes.

    Parameters
    ----------
    address_space_bytes
        Limit on virtual memory; 0 leaves it (an emulator reserves far more than it uses).
    file_bytes
        Limit on the size of any file that is written.
    """
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    if address_space_bytes:
        _limit(resource.RLIMIT_AS, address_space_bytes)


def limit_cpu(more_s: float) -> None:
    """Allow this process and each of its children `more_s` seconds of CPU time from now; SIGXCPU ends them after that.

    Notes
    -----
    Only a backstop for the agent's wall clock, for the case that the agent is frozen. A child inherits what its
    parent has left when it starts, and would otherwise keep that limit for all calls that follow.
    """
    for pid in (os.getpid(), *own_children()):
        soft = int(cpu_time_s(pid) + more_s) + 1
        try:
            _, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
            if hard != resource.RLIM_INFINITY:
                soft = min(soft, hard)
            resource.prlimit(pid, resource.RLIMIT_CPU, (soft, hard))
        except ProcessLookupError:  # a child that has just ended
            continue


def limit_own_cpu(more_s: float) -> None:
    """Do as `limit_cpu` for this process alone, which costs some microseconds instead of reading /proc."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + more_s) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def _parents() -> dict[int, int]:
    found: dict[int, int] = {}
    for name in os.listdir(_PROC):  # noqa: PTH208 - hot, and only the names are wanted
        if not name.isdigit():
            continue
        # The command name may hold spaces and brackets; the parent is the second field after it.
        rest = _read(_PROC / name / "stat").rpartition(b")")[2].split()
        if len(rest) > 1:
            found[int(name)] = int(rest[1])
    return found


def cpu_time_s(pid: int) -> float:
    """Return the CPU time of all threads of a process, as the kernel counts it, in whole ticks of its clock."""
    fields = _read(_PROC / str(pid) / "stat").rpartition(b")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")  # in user mode and in the kernel


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
