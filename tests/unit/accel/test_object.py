"""The object that an author gives: what makes no sense in it is told at once, by what it is about."""

from __future__ import annotations

import pytest

from farm.accel import Accelerator, External, Intrinsic, Operand
from farm.errors import InvalidInput

X, OUT = Operand("x", "int8", (4,)), Operand("out", "int32", (4,))


def hook(*_):
    return b""


def target(**changes):
    return Accelerator(**{"name": "a", "compile": hook, "launch": hook, **changes})


def intrinsic(**changes):
    return Intrinsic(**{"name": "i", "operands": [X, OUT], "body": hook, "emit": hook, **changes})


def external(**changes):
    return External(**{"name": "e", "supports": hook, "call": hook, **changes})


def test_parts_that_make_sense_are_taken():
    whole = target(intrinsics=[intrinsic()], execute=hook, externals=(external(workspace=hook),))
    assert whole.ways == ("library", "tensorize", "target")
    assert whole.configs == {"a": None}


@pytest.mark.parametrize(
    ("make", "changes", "problem"),
    [
        (target, {"name": 5}, "accelerator 5: malformed name"),
        (target, {"name": "A"}, "accelerator 'A': malformed name"),
        (target, {"configs": ["a"]}, "configs is no mapping"),
        (target, {"configs": {"../x": 1}}, "configuration '../x'"),
        (target, {"version": True}, "version is True; use 1 to 65535"),
        (target, {"version": 1 << 16}, "version is 65536"),
        (target, {"timing": "wall"}, "timing is 'wall'"),
        (target, {"launch": None}, "compile and launch belong together"),
        (target, {"compile": None, "launch": None}, "it has no way"),
        (target, {"knobs": 7}, "knobs is 7; give a function or None"),
        (target, {"execute": hook}, "intrinsics and execute belong together"),
        (target, {"intrinsics": 5, "execute": hook}, "intrinsics are 5; give a list of Intrinsic"),
        (target, {"intrinsics": [5], "execute": hook}, r"intrinsics are \[5\]; give a list"),
        (target, {"externals": "abc"}, "externals are 'abc'; give a list of External"),
        (target, {"externals": [external(), external()]}, "two externals of one name"),
        (intrinsic, {"name": 5}, "intrinsic 5: malformed name"),
        (intrinsic, {"operands": 5}, "operands are 5; give a list of Operand"),
        (intrinsic, {"operands": [X]}, "operands x; give two or more"),
        (intrinsic, {"operands": [X, X]}, "operands x, x; give two or more"),
        (intrinsic, {"operands": [Operand("x", "int99", (4,)), OUT]}, "operand x is 'int99'"),
        (intrinsic, {"operands": [Operand("x", None, (4,)), OUT]}, "operand x is None"),
        (intrinsic, {"operands": [Operand("x", "int8", 4), OUT]}, "operand x has shape 4"),
        (intrinsic, {"operands": [Operand("x", "int8", ()), OUT]}, "operand x has shape"),
        (intrinsic, {"operands": [Operand("x", "int8", (1.5,)), OUT]}, "operand x has shape"),
        (intrinsic, {"operands": [Operand("x", "int8", (0,)), OUT]}, "operand x has shape"),
        (intrinsic, {"operands": [Operand("x", "int8", (1 << 30,)), OUT]}, "at most 1048576"),
        (external, {"name": None}, "external None: malformed name"),
        (external, {"supports": None}, "supports is None; give a function$"),
        (external, {"call": 3}, "call is 3; give a function$"),
        (external, {"tunables": {}}, "tunables is {}; give a function or None"),
    ],
)
def test_part_that_makes_no_sense_is_refused_by_name(make, changes, problem):
    with pytest.raises(InvalidInput, match=problem):
        make(**changes)
