"""One opener for each device of a host: a file lock that lasts as long as the processes that hold it.

Owns: the lock files in a folder that all agents of one user on one host share.
Does not own: what a lock stands for (its name is the caller's).

Invariant: of two agents that ask for one name, one gets it and the other learns the first one's process id.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from farm.errors import DeviceBusy, InfrastructureError

FOLDER_VARIABLE = "KERNEL_FARM_RUNTIME_DIR"


@dataclass(frozen=True, slots=True)
class DeviceLock:
    """A lock that is held. Its descriptor may be inherited: the lock ends when the last copy is closed."""

    path: Path
    fd: int

    def release(self) -> None:
        """Close this process's copy of the lock."""
        os.close(self.fd)


def runtime_folder() -> Path:
    """Return the folder of this user's locks on this host, private to the user; create it if it is absent.

    Raises
    ------
    InfrastructureError
        It belongs to somebody else or is open to others.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    session = os.environ.get("XDG_RUNTIME_DIR")
    if named:
        folder = Path(named)
    elif session and Path(session).is_dir():
        folder = Path(session) / "kernel-farm"
    else:
        folder = Path(tempfile.gettempdir()) / f"kernel-farm-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode) or facts.st_mode & 0o077:
        raise InfrastructureError(
            f"runtime folder {folder}: not a folder that only this user can reach; remove it or set "
            f"{FOLDER_VARIABLE}"
        )
    return folder


def acquire(name: str) -> DeviceLock:
    """Take the lock `name` without waiting.

    Raises
    ------
    DeviceBusy
        Somebody else holds it; ``details['pid']`` says who.
    InfrastructureError
        The lock file cannot be used.
    """
    readable = "".join(char if char.isalnum() or char in "._-" else "_" for char in name)[:80]
    unique = hashlib.sha256(name.encode()).hexdigest()[:12]
    path = runtime_folder() / f"{readable}.{unique}.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InfrastructureError(
            f"device lock {path}: cannot be opened ({error.strerror}); free it"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = _holder(fd)
        os.close(fd)
        raise DeviceBusy(
            f"device {name}: locked by pid {pid}; end that agent or drop the device here", pid=pid
        ) from error
    with contextlib.suppress(OSError):  # the id is for people; the lock holds without it
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return DeviceLock(path, fd)


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).decode(errors="replace").strip()
    return text if text.isdigit() else "unknown"
