from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.ea.assembly import assemble
from farm.ea.config import CONFIGS, EA8, EA16
from farm.ea.disassembly import disassemble, format_instruction
from farm.ea.isa import (
    LAYOUTS,
    Engine,
    Gemm,
    Halt,
    Load,
    Mark,
    SetB,
    Source,
    Space,
    Store,
    Transfer,
    Vec,
    VecOp,
)
from farm.ea.program import Arg, Program
from farm.errors import InvalidProgram

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name != "zero" and not name.startswith(("arg", "sem"))
)


@st.composite
def instructions(draw):
    layout = draw(st.sampled_from(LAYOUTS))
    values = {flag: draw(st.booleans()) for flag in layout.flags if flag is not None}
    for field in layout.fields:
        enum = field.enum
        numbers = st.integers(field.low, field.high) | st.sampled_from([0, field.high])
        values[field.name] = draw(numbers if enum is None else st.sampled_from(list(enum)))
    semaphores = st.lists(st.integers(0, 14), max_size=2).map(tuple)
    return layout.kind(waits=draw(semaphores), posts=draw(semaphores), **values)


@st.composite
def programs(draw):
    args = draw(st.lists(NAMES, unique=True, max_size=16))
    return Program(
        draw(st.sampled_from(list(CONFIGS.values()))),
        tuple(Arg(name, draw(st.integers(0, 1 << 40))) for name in args),
        tuple(draw(st.lists(NAMES, unique=True, max_size=15))),
        tuple(draw(st.lists(instructions(), max_size=6))),
    )


@given(programs())
@settings(max_examples=40)
def test_assemble_of_disassemble_any_program_is_the_identity(program):
    assert assemble(disassemble(program)) == program


TEXT = """\
.isa 1                              ; comment
.mach ea16
.args A[64*64], W, C
.sem  full cfull, ofull
.equ  TILE 1 << 4 + 2               ; shifts bind least: 64
.equ  HALF (TILE / 2) % 33 - -0x10 - 0b10000
ld.s  s[0], A+TILE*2, rows=TILE cols=64 dstride=64 lstride=TILE | post full
ld.w  c[512], W, rows=1, cols=16
ld.c  c[8], zero, rows=2 cols=16
gemm  c[0], s[0], s[8192], m=64 nt=4 kt=4 aks=64 cns=64 accumulate | wait full | post cfull ofull
vec.rq s[12288], c[0], c[1000], rows=256 imm=-3 | wait cfull, ofull
vec.clamp c[0], c[0], b[2], rows=4 s2inc=0
vec.splat c[5], #-7, rows=HALF
setb b[3], -(1 << 31)
end:  mark.ve end
st.c  C+0, c[0], rows=2 cols=64 dstride=64 lstride=64 saturate
last: halt
"""


def test_assemble_every_construct_gives_the_instructions_meant():
    program = assemble(TEXT)
    assert program == Program(
        EA16,
        (Arg("A", 4096), Arg("W", 16), Arg("C", 128)),
        ("full", "cfull", "ofull"),
        (
            Load(
                space=Transfer.SPAD_I8,
                arg=0,
                row=0,
                rows=64,
                cols=64,
                lstride=64,
                dstride=64,
                offset=128,
                posts=(0,),
            ),
            Load(space=Transfer.ACC_I8, arg=1, row=512, rows=1, cols=16),
            Load(space=Transfer.ACC_I32, row=8, rows=2, cols=16, fill=True),
            Gemm(
                m=64,
                nt=4,
                kt=4,
                a=0,
                w=8192,
                c=0,
                aks=64,
                cns=64,
                accumulate=True,
                waits=(0,),
                posts=(1, 2),
            ),
            Vec(
                op=VecOp.RQ,
                rows=256,
                dsp=Space.SPAD,
                dst=12288,
                s1sp=Space.ACC,
                s1=0,
                s2=1000,
                imm=-3,
                waits=(1, 2),
            ),
            Vec(
                op=VecOp.CLAMP,
                rows=4,
                dsp=Space.ACC,
                dst=0,
                s1sp=Space.ACC,
                source=Source.REG,
                s2=2,
            ),
            Vec(
                op=VecOp.SPLAT,
                rows=32,
                dsp=Space.ACC,
                dst=5,
                source=Source.IMM,
                imm=-7,
                sinc=0,
            ),
            SetB(reg=3, value=-(1 << 31)),
            Mark(engine=Engine.VE, tag=8),
            Store(
                space=Transfer.ACC_I32,
                arg=2,
                row=0,
                rows=2,
                cols=64,
                lstride=64,
                dstride=64,
                saturate=True,
            ),
            Halt(),
        ),
    )


HEAD = ".isa 1\n.mach ea16\n.args A\n.sem full\n"


@pytest.mark.parametrize(
    ("line", "column", "what"),
    [
        ("gemm c[0], s[0] m=1", 17, "expected ','"),
        ("gemm c[0], c[0], s[0], m=1", 12, "expected s[...]"),
        ("vec.foo c[0], c[0], rows=1", 1, "use vec.mov, vec.add"),
        ("ld.s s[0], B, rows=1 cols=1", 12, "unknown argument 'B'"),
        ("ld.s s[0], A, rows=1", 1, "missing cols"),
        ("ld.s s[0], A, rows=1 rows=1", 22, "given twice"),
        ("ld.s s[0], A, rows=1 colls=1", 22, "unknown keyword"),
        ("ld.s s[0], A, rows=4096 cols=1", 20, "4096 does not fit; use 0 to 4095"),
        ("ld.s s[99999], A, rows=1 cols=1", 1, "bad row (99999)"),
        ("sync.ve | wait nope", 16, "unknown semaphore 'nope'"),
        ("sync.ve | wait full full full", 26, "more than two"),
        ("sync.ve | hold full", 11, "expected 'wait' or 'post'"),
        ("setb b[0], 1/0", 13, "division by zero"),
        ("setb b[0], 1<<64", 13, "shift by 64"),
        ("setb b[0], (1<<63)*4", 19, "value too large"),
        ("setb b[0], " + "9" * 30, 12, "number too long"),
        ("setb b[0], " + "(" * 60, 12 + 50, "nested deeper"),
        ("setb b[0], x", 12, "unknown name 'x'"),
        ("halt halt", 6, "unknown keyword"),
        ("halt 3", 6, "unexpected '3'"),
        ("halt @", 6, "unexpected '@'"),
        ("setb b[0], 3x", 12, "unexpected '3'"),
        (".mach ea17", 7, "use ea8, ea16, ea32"),
        (".isa 2", 1, "unknown version 2"),
        (".bss", 1, "unknown header"),
        (".args A", 7, "name taken"),
        (".args zero", 7, "bad name"),
        (".sem sem7", 6, "bad name"),
        (".equ a 1\n.equ a 2", 6, "defined twice"),
    ],
)
def test_assemble_error_points_at_file_line_and_column(line, column, what):
    with pytest.raises(InvalidProgram) as caught:
        assemble(HEAD + line, "k.s")
    number = 4 + len(line.splitlines())
    first, shown, caret = str(caught.value).splitlines()
    assert first.startswith(f"k.s:{number}:{column}: ")
    assert what in first
    assert shown == "    " + line.splitlines()[-1]
    assert caret == " " * (3 + column) + "^"
    expected = {"file": "k.s", "line": str(number), "column": str(column)}
    assert caught.value.details == expected


@pytest.mark.parametrize(("text", "missing"), [(".mach ea16", ".isa"), (".isa 1", ".mach")])
def test_assemble_without_a_header_is_refused(text, missing):
    with pytest.raises(InvalidProgram, match=f"no {missing} header"):
        assemble(text + "\nhalt\n")


def test_error_in_a_long_line_shows_the_letters_around_its_place():
    line = f"{' ' * 5000}ld.s s[0], {'A' * 5000}"
    with pytest.raises(InvalidProgram) as caught:
        assemble(f".isa 1\n.mach ea16\n.args A[64]\n{line}\n", "long.eas")
    head, shown, caret = caught.value.message.splitlines()
    column = int(head.split(":")[2]) - 1
    assert len(shown) < 200
    assert shown[caret.index("^") :] == line[column:][: len(shown) - caret.index("^")]


def test_assemble_for_another_machine_is_refused():
    with pytest.raises(InvalidProgram, match="use ea8"):
        assemble(HEAD, config=EA8)


def test_format_instruction_with_nameless_enum_value_shows_the_object():
    program = Program(EA16, (), (), (Mark(engine=9, tag=1),))
    assert "engine=9" in format_instruction(program.instructions[0], program)


@pytest.mark.parametrize(
    ("args", "semaphores", "what"),
    [
        ((Arg("a b"),), (), "bad name"),
        ((Arg("a", -1),), (), "bad length"),
        (tuple(Arg(f"a{i}") for i in range(17)), (), "too many arguments"),
        ((), tuple(f"s{i}" for i in range(16)), "too many semaphores"),
        ((), ("x", "x"), "name taken"),
    ],
)
def test_program_with_bad_declarations_is_refused(args, semaphores, what):
    with pytest.raises(InvalidProgram, match=what):
        Program(EA16, args, semaphores, ())
