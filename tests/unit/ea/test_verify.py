from __future__ import annotations

import dataclasses

import pytest

from farm.ea.access import DramAccess
from farm.ea.assembly import assemble
from farm.ea.config import EA16
from farm.ea.faults import Fault
from farm.ea.isa import Engine, Halt, Sync
from farm.ea.program import Program
from farm.ea.verify import check, verify
from farm.errors import InvalidProgram

HEAD = ".isa 1\n.mach ea16\n.args A[4096], C[4096]\n.sem x, y\n"


def findings(text: str, **options) -> list[tuple[str, int, str]]:
    program = assemble(HEAD + text)
    return [(each.fault.value, each.pc, each.what) for each in verify(program, **options)]


LOAD = "ld.s s[0], A, rows=64 cols=16 dstride=16"
WEIGHTS = "ld.s s[100], A, rows=16 cols=16 dstride=16"
GEMM = "gemm c[0], s[0], s[100], m=64"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            f"{WEIGHTS} | post x\n{LOAD}\n{GEMM} | wait x\nhalt",
            "gemm@2 reads s[0:64) written by ld@1 without happens-before",
        ),
        (
            f"{WEIGHTS}\n{LOAD} | post x\n{GEMM} | wait x\n"
            "ld.s s[32], A, rows=64 cols=16 dstride=16\nhalt",
            "ld@3 writes s[32:64) read by gemm@2 without happens-before",
        ),
        (
            f"{WEIGHTS}\n{LOAD} | post x\n{GEMM} | wait x\nvec.splat c[60], #0, rows=8\nhalt",
            "vec@3 writes c[60:64) written by gemm@2 without happens-before",
        ),
        (
            "ld.s s[0], A, rows=1 cols=16 | post x\n"
            "st.s C+32, s[0], rows=1 cols=16 | wait x\nld.s s[5], C+40, rows=1 cols=4\nhalt",
            "ld@2 reads arg1[40:44) written by st@1 without happens-before",
        ),
        (
            "ld.s s[0], A, rows=2 cols=16 dstride=16 | post x\nld.s s[5], C, rows=4 cols=4 dstride=16\n"
            "st.s C+18, s[0], rows=2 cols=4 dstride=16 | wait x\nhalt",
            "st@2 writes arg1[18:38) read by ld@1 without happens-before",
        ),
    ],
)
def test_verify_unordered_accesses_are_named_with_rows_and_partners(text, what):
    assert [each[2] for each in findings(text) if each[0] == "HAZARD"] == [what]
    (fault,) = {each[0] for each in findings(text)}
    assert fault == "HAZARD"


@pytest.mark.parametrize(
    "text",
    [
        f"{WEIGHTS}\n{LOAD} | post x\n{GEMM} | wait x\nhalt",
        f"{WEIGHTS}\n{LOAD}\nfence\n{GEMM}\nhalt",
        # Ordered through a third engine.
        f"{WEIGHTS}\n{LOAD} | post x\nsync.ve | wait x | post y\n{GEMM} | wait y\nhalt",
        # The second wait follows the second post.
        f"{WEIGHTS} | post x\n{LOAD} | post x\nsync.ge | wait x\n{GEMM} | wait x\nhalt",
        # Columns of one argument, interleaved but apart.
        "ld.s s[0], A, rows=1 cols=16 | post x\nld.s s[5], C, rows=4 cols=4 dstride=16\n"
        "st.s C+4, s[0], rows=1 cols=12 dstride=16 | wait x\nhalt",
    ],
)
def test_verify_ordered_accesses_pass(text):
    assert findings(text) == []


def test_verify_first_wait_follows_only_the_first_post():
    text = f"{WEIGHTS} | post x\n{LOAD} | post x\n{GEMM} | wait x\nsync.ge | wait x\nhalt"
    assert [each[:2] for each in findings(text)] == [("HAZARD", 2)]


def test_verify_read_of_rows_never_written_is_reported():
    text = f"{LOAD} | post x\nst.s C, s[60], rows=8 cols=16 dstride=16 | wait x\nhalt"
    assert findings(text) == [("UNINIT", 1, "st@1 reads s[64:68), never written")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sync.ld | wait x\nsync.ve | post x\nhalt", ("SEM_UNDERFLOW", 0)),
        ("sync.ld | post x\nsync.ve | wait x x\nhalt", ("SEM_UNDERFLOW", 1)),
        ("sync.ld | post x\nsync.ge | post x\nhalt", ("SEM_MULTI", 1)),
        (
            "sync.ld | post x\nsync.ld | post x\nsync.ge | wait x\nsync.ve | wait x\nhalt",
            ("SEM_MULTI", 3),
        ),
        ("sync.ld | post x\nsync.ve | wait x\n" * 256 + "halt", ("SEM_OVERFLOW", 510)),
        ("halt\nfence\nhalt", ("NO_HALT", 0)),
        ("fence", ("NO_HALT", 1)),
        ("", ("NO_HALT", 0)),
        ("ld.s s[0], A+4090, rows=1 cols=8\nhalt", ("DRAM_OOB", 0)),
        ("ld.s s[0], arg7, rows=1 cols=8\nhalt", ("DRAM_OOB", 0)),
        ("ld.c c[0], A, rows=2 cols=8 dstride=6\nhalt", ("MISALIGNED", 0)),
        ("vec.splat c[1020], b[0], rows=2 dinc=4\nhalt", ("ACC_OOB", 0)),
    ],
)
def test_verify_broken_rule_is_one_finding(text, expected):
    assert [each[:2] for each in findings(text)] == [expected]


def test_verify_handshake_bounds_the_count():
    text = "sync.ld | post x\n"
    text += "sync.ve | wait x | post y\nsync.ld | wait y | post x\n" * 400
    assert findings(text + "halt") == []


BAD_FIELDS = [
    ("ld.s s[0], A, rows=4 cols=17 lstride=3", "blocks overlap: lstride 3 is less than rows 4"),
    ("ld.s s[0], zero, rows=1 cols=1 dstride=4", "a fill reads nothing"),
    ("ld.w c[0], zero, rows=1 cols=1", "a fill does not widen"),
    ("ld.s s[0], A, rows=1 cols=0", "cols is 0"),
    ("st.w C, c[0], rows=1 cols=1", "a store cannot widen"),
    ("st.s C, s[0], rows=1 cols=1 saturate", "only int32 rows"),
    ("st.c C, c[0], rows=2 cols=16 dstride=60", "rows overlap in DRAM"),
    ("gemm c[0], s[0], s[0], m=0", "m is 0"),
    ("gemm c[0], s[0], s[0], m=4 nt=2 cns=3", "blocks of C overlap"),
    ("vec.mov c[0], c[0], rows=0", "rows is 0"),
    ("vec.mov c[0], c[0], rows=1 s2=4", "no operand 2"),
    ("vec.mov c[0], c[0], rows=1 imm=4", "does not use imm"),
    ("vec.splat c[0], c[0], rows=1", "splat takes an immediate"),
    ("vec.splat c[0], #0, rows=1 sinc=1", "splat has no s1"),
    ("vec.clamp c[0], c[0], #3, rows=1", "a pair of operands cannot be"),
    ("vec.rq c[0], c[0], b[15], rows=1", "register is 15, allowed 0 to 14"),
    ("vec.add c[0], c[0], b[16], rows=1", "register is 16, allowed 0 to 15"),
    ("vec.add c[0], c[0], b[1], rows=1 s2inc=1", "only rows can advance"),
    ("vec.add c[0], c[0], #1, rows=1 s2=1", "an immediate leaves s2 0"),
    ("vec.lut8 c[0], c[0], b[1], rows=1", "lut8 takes a table in rows"),
    ("vec.widen c[0], c[0], rows=1", "widen goes from the scratchpad"),
    ("fence | wait x", "number of waits is 1, allowed 0 to 0"),
]


@pytest.mark.parametrize(("line", "what"), BAD_FIELDS)
def test_verify_fields_that_contradict_each_other_are_bad(line, what):
    (found,) = [each for each in findings(line + "\nhalt") if each[1] == 0]
    assert found[0] == "BAD_FIELD"
    assert what in found[2]


def test_verify_values_that_no_field_can_hold_are_bad():
    bad = (Sync(engine=Engine.LD, waits=(15,), posts=(0, 1, 2)), Sync(engine=9), Halt())  # type: ignore[arg-type]
    found = verify(Program(EA16, (), (), bad))
    assert [(each.fault, each.pc) for each in found] == [(Fault.BAD_FIELD, 0)] * 2 + [
        (Fault.BAD_FIELD, 1)
    ]


def test_verify_lengths_given_replace_the_programs_own():
    text = "ld.s s[0], A+100, rows=1 cols=8\nhalt"
    assert findings(text, arg_bytes=[108, 0]) == []
    assert findings(text, arg_bytes=[107, 0]) == [
        ("DRAM_OOB", 0, "bytes [100:108) of argument 0, which has 107")
    ]


def test_verify_stops_at_the_limit_of_findings():
    assert len(findings("sync.ld | wait x\n" * 30 + "halt", max_findings=7)) == 7


def test_check_refuses_with_the_first_finding_and_counts_the_rest():
    program = assemble(HEAD + f"{WEIGHTS}\n{LOAD}\n{GEMM}\nhalt")
    with pytest.raises(InvalidProgram, match="and 1 more; correct the program") as caught:
        check(program)
    assert caught.value.details == {
        "fault": "HAZARD",
        "pc": "2",
        "instruction": "gemm c[0], s[0], s[100], m=64",
        "engine": "GE",
        "range": "[0:64)",
    }
    check(dataclasses.replace(program, instructions=(Halt(),)))


def test_dram_access_overlap_is_exact():
    base = DramAccess(0, True, 0, 4, 16, 4)
    others = [(offset, width) for offset in range(20) for width in (1, 5, 12)]
    for offset, width in others:
        other = DramAccess(0, False, offset, 3, 16, width)
        mine = {r * 16 + i for r in range(4) for i in range(4)}
        theirs = {offset + r * 16 + i for r in range(3) for i in range(width)}
        assert base.overlaps(other) == other.overlaps(base) == bool(mine & theirs)
    assert not base.overlaps(dataclasses.replace(base, arg=1))
