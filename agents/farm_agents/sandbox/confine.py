"""The steps by which a process confines itself, from joining a sandbox to giving up what it could do.

Owns: these system calls, through ctypes. Does not own: when they are made (`farm_agents.worker.zygote`).

Invariant: after `give_up` the process and everything that it starts has no capability, cannot get one, and has the
filter; each step raises OSError if the kernel refuses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterator, Mapping, Sequence

from farm.errors import InfrastructureError

_LIBC = ctypes.CDLL(None, use_errno=True)

_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63

# CLONE_NEWUSER, NEWNS, NEWPID, NEWIPC, NEWNET, NEWUTS, NEWCGROUP
NAMESPACES = (
    0x10000000 | 0x00020000 | 0x20000000 | 0x08000000 | 0x40000000 | 0x04000000 | 0x02000000
)
_NEWPID = 0x20000000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def join(procs_fds: Sequence[int], init_fd: int) -> None:
    """Join control groups and a sandbox; children are in its pid namespace, this process itself is not.

    Parameters
    ----------
    procs_fds
        Descriptors of ``cgroup.procs`` files.
    init_fd
        A pidfd of the sandbox's first process.
    """
    for fd in procs_fds:
        os.write(fd, b"0")
    _check("setns", _LIBC.setns(init_fd, NAMESPACES))


@contextlib.contextmanager
def children_inside(init_fd: int) -> Iterator[bool]:
    """Have what this process forks meanwhile be in the pid namespace of a sandbox; False if it may not decide that.

    Who may not has no capability in the sandbox before it has joined its user namespace, and then cannot come back: a
    process in between has to join, and fork.

    Raises
    ------
    OSError
        The sandbox has ended.
    InfrastructureError
        There is no way back: this process must end.
    """
    own, here = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC), os.getpid()
    try:
        try:
            _check("setns", _LIBC.setns(init_fd, _NEWPID))
        except PermissionError:
            yield False
            return
        try:
            yield True
        finally:
            if os.getpid() == here and _LIBC.setns(own, _NEWPID) != 0:
                raise InfrastructureError("sandbox: no way back out of it; start the worker again")
    finally:
        os.close(own)


def give_up(limits: Mapping[str, int], program: bytes) -> None:
    """Set resource limits, drop every capability, and install a filter.

    Parameters
    ----------
    limits
        Names of `resource` such as ``RLIMIT_NOFILE`` with their values.
    program
        As from `farm_agents.sandbox.seccomp.make_filter`.
    """
    for name, value in limits.items():
        kind: int = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))
    _check("prctl(no_new_privs)", _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        if _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the kernel knows no more
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    _check("capset", _LIBC.capset(ctypes.byref(header), bytes(24)))
    structure = _Program(len(program) // 8, program)
    _check(
        "prctl(seccomp)",
        _LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(structure), 0, 0),
    )


def _check(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
