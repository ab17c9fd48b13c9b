"""Bodies in other languages: declarations, limits, the wire, and what refuses them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.codegen import compile_function
from farm.errors import InvalidFunction, UnsupportedFunction
from farm.ir import DType, Function, Param, Role, interpret, parse, serialise, verify
from farm.ir.buffer import Buffer
from farm.ir.declaration import declaration_of, functions_of, parse_declaration
from farm.ir.source import MAX_SOURCE_BYTES, Language, Source
from farm.ir.stmt import Block
from farm.target import Target

TEXT = b"// farm: f(x: int32[4], y: int32[4] output)\nvoid f(const int *x, int *y) { *y = *x; }\n"
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@st.composite
def params(draw):
    dtype = draw(st.sampled_from(DType))
    shape = draw(st.lists(st.integers(1, 99), max_size=3).map(tuple))
    align = dtype.size_bytes << draw(st.integers(0, 4))
    return Param(Buffer(draw(NAMES), dtype, shape, align), draw(st.sampled_from(Role)))


@given(NAMES, st.lists(params(), min_size=1, max_size=5).map(tuple))
def test_declaration_is_read_as_it_is_printed(name, given_params):
    function = Function(name, given_params, Source(Language.C, TEXT))
    assert parse_declaration(declaration_of(function)) == (name, given_params)


@given(st.text(max_size=40) | st.text("farm(): int32[4],xyouput", max_size=40))
def test_any_text_is_a_declaration_or_refused(text):
    try:
        name, found = parse_declaration(text)
    except InvalidFunction:
        return
    assert name in text
    assert found


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("f.c", b"void f(void) {}", "no function is declared; add a comment `// farm: NAME"),
        ("f.ll", b"define void @f() { ret void }", "add a comment `; farm: NAME"),
        ("f.bc", TEXT, "pass it as NAME"),
        ("f.cpp", TEXT, r"unknown language; use a name that ends with .c, .ll, .bc"),
        ("f.c", b"// farm: f(x int32)\n", r"malformed parameter \('x int32'\)"),
        ("f.c", b"// farm: f\n", r"declaration: malformed \('f'\)"),
        ("f.c", b"// farm: f(x: int3[4])\n", "dtype: unknown"),
        ("f.c", b"// farm: f(x: int32[0] output)\n", "impossible shape"),
    ],
)
def test_file_that_declares_nothing_right_is_refused_and_shown_how(name, data, problem):
    with pytest.raises(InvalidFunction, match=problem):
        functions_of(name, data)


def test_declarations_of_comments_and_of_the_caller():
    (found,) = functions_of("f.c", TEXT, options=["-DN=4"])
    assert declaration_of(found) == "f(x: int32[4] input, y: int32[4] output)"
    assert found.body == Source(Language.C, TEXT, ("-DN=4",))
    ends = functions_of("f.c", b"/* farm: f(y: int8 output) */\n; farm: g(y: int8 output)\n")
    assert [function.name for function in ends] == ["f", "g"]
    (other,) = functions_of("f.bc", b"BC", ["g(y: float64[2] inout)"])
    assert (other.name, other.body.language) == ("g", Language.LLVM)


def test_source_travels_and_its_digest_holds_text_and_options():
    (plain,) = functions_of("f.c", TEXT)
    (defined,) = functions_of("f.c", TEXT, options=["-DN=4"])
    assert parse(serialise(plain)) == plain
    assert parse(serialise(defined)) == defined
    assert len({serialise(plain), serialise(defined)}) == 2
    assert "source c -DN=4 {" in str(defined)


@pytest.mark.parametrize(
    "option", ["-o/etc/passwd", "-I/etc", "-include x", "@file", "-D1", "-wrapper,x", "-Xclang"]
)
def test_option_that_could_name_a_file_is_refused(option):
    with pytest.raises(InvalidFunction, match="source: option"):
        Source(Language.C, TEXT, (option,))


def test_limits_of_sources():
    for text in (b"", bytes(MAX_SOURCE_BYTES + 1)):
        with pytest.raises(InvalidFunction, match="bytes; use 1 to"):
            Source(Language.C, text)
    with pytest.raises(InvalidFunction, match="only C takes some"):
        Source(Language.LLVM, TEXT, ("-DN",))
    with pytest.raises(InvalidFunction, match="at most 64"):
        Source(Language.C, TEXT, ("-DN",) * 65)


def test_source_is_the_whole_body_and_nothing_interprets_it():
    (function,) = functions_of("f.c", TEXT)
    verify(function)
    with pytest.raises(InvalidFunction, match="only part of the body"):
        verify(Function(function.name, function.params, Block((function.body,))))
    with pytest.raises(InvalidFunction, match="which nothing interprets"):
        interpret(function, [np.zeros(4, np.int32)])


@pytest.mark.parametrize("target", ["ea", "opencl"])
def test_accelerator_refuses_a_source(target):
    (function,) = functions_of("f.c", TEXT)
    with pytest.raises(UnsupportedFunction, match=r"body .*c; place it on the CPU"):
        compile_function(serialise(function), "device", Target.parse(target))
