"""A child that tries to break out of its sandbox: how an agent learns whether the sandbox holds.

Owns: the attempts. Does not own: what their results mean (`farm_agents.sandbox.selftest`).

Invariant: each attempt reports in words what it got; an attempt that was refused reports nothing. Nothing outside the
sandbox would be damaged if one succeeded.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from farm_agents.sandbox.confine import NAMESPACES
from farm_agents.worker.frames import read_frame, write_frame

ORPHAN_S = 600
_ALLOWED_NAMES = frozenset({"PATH", "HOME", "LANG", "LC_CTYPE", "XDG_CACHE_HOME"})
_PTRACE_ATTACH = 16
_LIBC = ctypes.CDLL(None, use_errno=True)


def serve(channel: socket.socket, config: Mapping[str, object]) -> None:
    """Try everything, answer with one JSON object (attempt → what it got), and stay until the agent ends it.

    Parameters
    ----------
    config
        ``secret`` (a file of the agent), ``cache`` (the blob cache), ``port`` (where the agent listens on loopback),
        ``processes`` and ``memory_bytes`` (the limits).
    """
    got = {name: story for name, attempt in ATTEMPTS.items() if (story := attempt(config))}
    write_frame(channel, json.dumps(got).encode())
    _leave_orphan()
    write_frame(channel, b"{}")
    read_frame(channel)


def warm_up(_: str) -> None:
    """Do nothing: a probe runs once."""


def _write_outside(config: Mapping[str, object]) -> str:
    places = ("/probe", "/usr/probe", f"{config['cache']}/probe", "/dev/probe")
    sysctl = "/proc/sys/kernel/core_pattern"
    return ", ".join(p for p in (*places, sysctl) if _succeeds(lambda p=p: _append(Path(p))))  # type: ignore[misc]


def _read_secret(config: Mapping[str, object]) -> str:
    path = Path(str(config["secret"]))
    return f"read {path}" if _succeeds(path.read_bytes) else ""


def _use_network(config: Mapping[str, object]) -> str:
    def connect() -> None:
        with socket.create_connection(("127.0.0.1", int(str(config["port"]))), 1.0):
            pass

    return "connected to the agent's host" if _succeeds(connect) else ""


def _see_processes(config: Mapping[str, object]) -> str:
    # The sandbox's first process, its keeper, and this one.
    seen = sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return f"saw {seen}" if len(seen) > 3 else ""


def _have_power(config: Mapping[str, object]) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    facts = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    sets = [name for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb") if int(facts[name], 16)]
    if facts.get("NoNewPrivs") != "1":
        sets.append("new privileges")
    if facts.get("Seccomp") != "2":
        sets.append("no system call filter")
    return ", ".join(sets)


def _gain_power(config: Mapping[str, object]) -> str:
    calls: dict[str, Callable[[], int]] = {
        "unshare": lambda: int(_LIBC.unshare(NAMESPACES & ~0x20000000)),
        "mount": lambda: int(_LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
        "ptrace": lambda: int(_LIBC.ptrace(_PTRACE_ATTACH, 1, 0, 0)),
        "setuid": lambda: int(_LIBC.setuid(0)),
    }
    return ", ".join(name for name, call in calls.items() if call() == 0)


def _inherit(config: Mapping[str, object]) -> str:
    names = sorted(
        set(os.environ) - _ALLOWED_NAMES - {n for n in os.environ if n.endswith("_THREADS")}
    )
    names = [n for n in names if n != "PYTHONUNBUFFERED"]
    found = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - only the names
    extra = [fd for fd in found if fd > 3 and _succeeds(lambda fd=fd: os.fstat(fd))]  # type: ignore[misc]
    return ", ".join([*names, *(f"descriptor {fd}" for fd in extra)])


def _fork_on(config: Mapping[str, object]) -> str:
    most = int(str(config["processes"]))
    pids: list[int] = []
    try:
        while len(pids) <= most:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            pids.append(pid)
    except OSError:
        return ""
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return f"had {len(pids)} children"


def _take_memory(config: Mapping[str, object]) -> str:
    size = 2 * int(str(config["memory_bytes"]))
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as region:
                for place in range(0, size, mmap.PAGESIZE):
                    region[place] = 1
        except (OSError, MemoryError):
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return f"used {size} bytes" if status == 0 else ""


ATTEMPTS: dict[str, Callable[[Mapping[str, object]], str]] = {
    "write outside its scratch folder": _write_outside,
    "read a file of the agent": _read_secret,
    "use the network": _use_network,
    "see other processes": _see_processes,
    "have capabilities": _have_power,
    "gain capabilities": _gain_power,
    "inherit": _inherit,
    "pass the limit on processes": _fork_on,
    "pass the limit on memory": _take_memory,
}


def _leave_orphan() -> None:
    """Leave a process behind in a session of its own, whose parent is gone."""
    if (pid := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(ORPHAN_S)
        os._exit(0)
    os.waitpid(pid, 0)


def _append(path: Path) -> None:
    with path.open("ab"):
        pass


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True
