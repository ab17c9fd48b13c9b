"""The user's Python file: what it may define, and errors that name its line."""

from __future__ import annotations

import os
import sys

import pytest

from farm.cli.source import read_request
from farm.errors import InvalidInput, InvalidTarget
from farm.target import Target

DOUBLE = """\
from farm import te
x = te.placeholder((8,), "int32", name="x")
y = te.compute((8,), lambda i: x[i] * 2, name="y")
double = te.function("double", [x, y])
"""


@pytest.fixture
def source(tmp_path):
    def write(text):
        path = tmp_path / "kernels.py"
        path.write_text(text)
        return path

    return write


def names(functions):
    return [function.name for function in functions]


@pytest.mark.parametrize("value", ["[double]", "(double,)", "double"])
def test_functions_without_targets_are_the_request(source, value):
    assert names(read_request(source(f"{DOUBLE}functions = {value}"), [])) == ["double"]


def test_functions_with_targets_are_placed_on_each(source):
    request = read_request(source(f"{DOUBLE}functions = [double]"), ["ea", "llvm"])
    assert {str(target): names(functions) for target, functions in request.items()} == {
        str(Target.parse("ea")): ["double"],
        str(Target.parse("llvm")): ["double"],
    }


@pytest.mark.parametrize("value", ["{'ea': [double]}", "[('ea', double)]", "{'ea': (double,)}"])
def test_request_with_targets_becomes_pairs(source, value):
    ((target, functions),) = read_request(source(f"{DOUBLE}request = {value}"), [])
    assert (target, names(functions)) == ("ea", ["double"])


@pytest.mark.parametrize("value", ["[double]", "double"])
def test_request_of_functions_is_kept(source, value):
    assert names(read_request(source(f"{DOUBLE}request = {value}"), [])) == ["double"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "defines neither of"),
        ("functions = []\nrequest = {}", "defines both of"),
        ("functions = 3", "`functions` is not a list of functions"),
        ("functions = [3]", "`functions` is not a list of functions"),
        ("request = 3", "`request` is not a list of functions"),
        ("request = {3: []}", "`request` is no {target: functions}"),
        ("request = ['ea']", "`request` is no {target: functions}"),
        ("request = {'ea': 3}", "`request[ea]` is not a list of functions"),
        ("x = 1\nfunctions = [y]", "kernels.py:2: NameError: name 'y' is not defined"),
        ("x = 1\n\nfunctions = [", "kernels.py:3: '[' was never closed"),
        ("import sys\nsys.exit(3)", "kernels.py:2: it exits (3)"),
        ("import no_such_module", "kernels.py:1: ModuleNotFoundError"),
        ("def f():\n    return 1 / 0\nf()", "kernels.py:2: ZeroDivisionError"),
        ("class E(BaseException): pass\nraise E('x')", "kernels.py:2: E: x"),
        ("raise GeneratorExit", "kernels.py:1: GeneratorExit"),
        ("x = '\\ud800'.encode()", "kernels.py:1: UnicodeEncodeError"),
    ],
)
def test_file_that_cannot_be_used_is_refused_with_its_line(source, text, what):
    with pytest.raises(InvalidInput, match=r"kernels\.py") as caught:
        read_request(source(text), [])
    assert what in caught.value.message


def test_error_of_the_farm_in_the_file_keeps_its_class_and_gets_the_line(source):
    with pytest.raises(InvalidTarget) as caught:
        read_request(source("from farm import Target\nTarget.parse('vax')"), [])
    assert "kernels.py:2: target: unknown kind ('vax')" in caught.value.message
    assert str(caught.value) == caught.value.message


def test_targets_with_a_request_are_refused(source):
    with pytest.raises(InvalidInput, match="drop --target"):
        read_request(source(f"{DOUBLE}request = [double]"), ["llvm"])


def test_unknown_target_is_refused_before_the_file_runs(source):
    with pytest.raises(InvalidTarget, match="unknown kind"):
        read_request(source("raise SystemExit"), ["vax"])


def test_nothing_that_a_file_starts_or_writes_gets_to_standard_output(source, capfd):
    text = f"import os\nos.system('echo child')\nos.write(1, b'raw\\n')\nprint('own')\n{DOUBLE}"
    read_request(source(f"{text}functions = [double]"), [])
    os.write(1, b"result\n")
    out, err = capfd.readouterr()
    assert out == "result\n"
    assert sorted(err.split()) == ["child", "own", "raw"]


def test_file_may_import_its_neighbour_and_print(source, tmp_path, capsys):
    (tmp_path / "kernel_farm_test_neighbour.py").write_text(DOUBLE)
    path = source(
        "from kernel_farm_test_neighbour import double\nimport sys\n"
        "print(sys.argv)\nfunctions = [double]"
    )
    before = list(sys.path), list(sys.argv)
    try:
        assert names(read_request(path, [])) == ["double"]
    finally:
        sys.modules.pop("kernel_farm_test_neighbour", None)
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"['{path}']\n")
    assert (sys.path, sys.argv) == before
