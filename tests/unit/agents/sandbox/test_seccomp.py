"""The system call filter, run by a small interpreter of its instructions."""

from __future__ import annotations

import struct

import pytest
from farm_agents.sandbox.bpf import JUMP_EQUAL, Jump, Label, Load, Return, assemble
from farm_agents.sandbox.seccomp import ALLOW, ENOSYS, EPERM, KILL, make_filter, supports
from farm_agents.sandbox.syscalls import (
    ARCHITECTURES,
    AUDIT_ARCH,
    CONDITIONAL,
    DENIED,
    LAST_KNOWN,
    denied_numbers,
)
from hypothesis import given
from hypothesis import strategies as st

NEWUSER, NEWNS, SIGCHLD, CLONE_VM = 0x10000000, 0x00020000, 17, 0x100


def run(program, arch, number, *arguments):
    """What the kernel would answer."""
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<II7Q", number, arch, 0, *values)
    code = list(struct.iter_unpack("<HBBI", program))
    at = word = 0
    while True:
        op, yes, no, value = code[at]
        at += 1
        match op:
            case 0x20:
                (word,) = struct.unpack_from("<I", data, value)
            case 0x15:
                at += yes if word == value else no
            case 0x35:
                at += yes if word >= value else no
            case 0x45:
                at += yes if word & value else no
            case 0x06:
                return value
            case _:
                raise AssertionError(op)


def ask(arch, number, *arguments):
    return run(make_filter(arch), AUDIT_ARCH[arch], number, *arguments)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_filter_answers_each_number_as_the_table_says(arch):
    column = ARCHITECTURES.index(arch)
    special = {row[column] for row in CONDITIONAL.values()}
    denied = set(denied_numbers(arch).values())
    for number in range(LAST_KNOWN + 40):
        if number not in special:
            expected = ENOSYS if number > LAST_KNOWN else EPERM if number in denied else ALLOW
            assert ask(arch, number) == expected, number


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_filter_kills_what_calls_through_another_abi(arch):
    assert run(make_filter(arch), 0x40000003, 0) == KILL  # 32-bit x86
    assert ask(arch, 0x40000000 | 39) == KILL  # x32


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_filter_lets_clone_make_processes_but_no_namespaces(arch):
    clone, clone3 = (CONDITIONAL[name][ARCHITECTURES.index(arch)] for name in ("clone", "clone3"))
    assert ask(arch, clone, SIGCHLD) == ALLOW
    assert ask(arch, clone, CLONE_VM | SIGCHLD) == ALLOW
    assert ask(arch, clone, NEWUSER | SIGCHLD) == EPERM
    assert ask(arch, clone, NEWNS | SIGCHLD) == EPERM
    assert ask(arch, clone3, 0) == ENOSYS


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_filter_lets_personality_be_asked_and_terminals_be_read(arch):
    personality, ioctl = (
        CONDITIONAL[name][ARCHITECTURES.index(arch)] for name in ("personality", "ioctl")
    )
    assert [ask(arch, personality, v) for v in (0, 0xFFFFFFFF, 0x0400000)] == [ALLOW, ALLOW, EPERM]
    assert [ask(arch, ioctl, 0, v) for v in (0x5401, 0x5412, 0x541C)] == [ALLOW, EPERM, EPERM]


@given(st.sampled_from(ARCHITECTURES), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_filter_has_an_answer_for_every_call(arch, number, argument):
    assert ask(arch, number, argument, argument) in {ALLOW, EPERM, ENOSYS, KILL}


def test_table_names_no_number_twice():
    for column in range(len(ARCHITECTURES)):
        rows = [*DENIED.values(), *CONDITIONAL.values()]
        numbers = [row[column] for row in rows if row[column] is not None]
        assert len(numbers) == len(set(numbers))


def test_architecture_without_a_table_is_not_supported():
    assert supports("x86_64")
    assert not supports("mips")


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([], "length"),
        ([Jump(JUMP_EQUAL, 1, yes="nowhere")], "no label"),
        ([Label("a"), Label("a"), Return(0)], "stands twice"),
        ([Label("a"), Load(0), Jump(JUMP_EQUAL, 1, yes="a")], "at most 255 forward"),
        ([Jump(JUMP_EQUAL, 1, yes="far"), *[Load(0)] * 256, Label("far"), Return(0)], "256"),
    ],
)
def test_program_that_cannot_be_assembled_is_a_defect(lines, what):
    with pytest.raises(ValueError, match=what):
        assemble(lines)
