"""The system call filter of confined code.

Owns: the policy and the program that states it. Does not own: the numbers (`farm_agents.sandbox.syscalls`), or
installing it (`farm_agents.sandbox.confine`).

    =============================================  ======================================================
    call                                           answer
    =============================================  ======================================================
    of another ABI (32-bit, x32)                   the process is killed (SIGSYS)
    of a kernel newer than the table               ENOSYS
    in the table of denied calls                   EPERM
    clone with a flag for a new namespace          EPERM
    clone3 (its flags cannot be looked at)         ENOSYS; libraries then use clone
    personality, except asking and the default     EPERM
    ioctl that types on a terminal                 EPERM
    everything else                                allowed
    =============================================  ======================================================

Invariant: the answer does not depend on the process's state, and no memory of the process is read.
"""

from __future__ import annotations

from farm_agents.sandbox.bpf import (
    JUMP_ANY_BIT,
    JUMP_AT_LEAST,
    JUMP_EQUAL,
    Jump,
    Label,
    Line,
    Load,
    Return,
    assemble,
)
from farm_agents.sandbox.syscalls import (
    ARCHITECTURES,
    AUDIT_ARCH,
    LAST_KNOWN,
    conditional_number,
    denied_numbers,
)

ALLOW = 0x7FFF0000
KILL = 0x80000000
EPERM, ENOSYS = 0x00050000 | 1, 0x00050000 | 38

NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET (NEWTIME cannot be given to clone)."""
PERSONALITIES = (0, 0xFFFFFFFF)
"""The default, and the question which it is."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI, TIOCLINUX."""

# Offsets in struct seccomp_data; the low half of an argument comes first (little-endian).
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24


def supports(arch: str) -> bool:
    """Return whether there is a filter for this architecture."""
    return arch in ARCHITECTURES


def make_filter(arch: str) -> bytes:
    """Return the filter of an architecture (one that `supports`), as bytes of `struct sock_filter`."""
    lines: list[Line] = [
        Load(_ARCH),
        Jump(JUMP_EQUAL, AUDIT_ARCH[arch], yes="native"),
        Return(KILL),
        Label("native"),
        Load(_NUMBER),
        # x32 calls carry bit 30 of the number under the same architecture.
        Jump(JUMP_ANY_BIT, 0x40000000, no="not x32"),
        Return(KILL),
        Label("not x32"),
        Jump(JUMP_AT_LEAST, LAST_KNOWN + 1, no="known"),
        Return(ENOSYS),
        Label("known"),
    ]
    for number in sorted(denied_numbers(arch).values()):
        lines += _refuse(number, EPERM)
    lines += _refuse(conditional_number(arch, "clone3"), ENOSYS)
    lines += _conditional(conditional_number(arch, "clone"), _FIRST, _no_namespaces())
    lines += _conditional(conditional_number(arch, "personality"), _FIRST, _one_of(PERSONALITIES))
    lines += _conditional(conditional_number(arch, "ioctl"), _SECOND, _none_of(TERMINAL_INPUT))
    return assemble([*lines, Return(ALLOW)])


def _refuse(number: int, answer: int) -> list[Line]:
    after = f"not {number}"
    return [Jump(JUMP_EQUAL, number, no=after), Return(answer), Label(after)]


def _conditional(number: int, argument: int, judged: list[Line]) -> list[Line]:
    after = f"not {number}"
    return [Jump(JUMP_EQUAL, number, no=after), Load(argument), *judged, Label(after)]


def _no_namespaces() -> list[Line]:
    return [
        Jump(JUMP_ANY_BIT, NEW_NAMESPACES, no="same namespaces"),
        Return(EPERM),
        Label("same namespaces"),
        Return(ALLOW),
    ]


def _one_of(values: tuple[int, ...]) -> list[Line]:
    jumps: list[Line] = [Jump(JUMP_EQUAL, value, yes="a good one") for value in values]
    return [*jumps, Return(EPERM), Label("a good one"), Return(ALLOW)]


def _none_of(values: tuple[int, ...]) -> list[Line]:
    jumps: list[Line] = [Jump(JUMP_EQUAL, value, yes="a bad one") for value in values]
    return [*jumps, Return(ALLOW), Label("a bad one"), Return(EPERM)]
