"""Typing rules of expressions, and which constants exist."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest

from farm.errors import InvalidFunction
from farm.ir.buffer import Buffer
from farm.ir.dtype import DType, as_dtype
from farm.ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Math,
    MathOp,
    Select,
    Var,
    binary,
    compare,
    const,
    select,
    walk,
)

INTEGERS = [dtype for dtype in DType if dtype.is_integer]
FLOATS = [dtype for dtype in DType if dtype.is_float]
NUMBERS = INTEGERS + FLOATS
ALLOWED = dict.fromkeys(BinaryOp, NUMBERS) | {
    BinaryOp.DIV: FLOATS,
    BinaryOp.FLOORDIV: INTEGERS,
    BinaryOp.FLOORMOD: INTEGERS,
    BinaryOp.SHL: INTEGERS,
    BinaryOp.SHR: INTEGERS,
    BinaryOp.AND: [DType.BOOL, *INTEGERS],
    BinaryOp.OR: [DType.BOOL, *INTEGERS],
    BinaryOp.XOR: [DType.BOOL, *INTEGERS],
}
X = Var("x")


def one(dtype: DType) -> Const:
    return const(1, dtype)


def test_dtype_every_member_has_the_facts_of_numpy() -> None:
    for dtype in DType:
        assert dtype.numpy.name == str(dtype) == dtype.value
        assert dtype.numpy.itemsize == dtype.size_bytes == dtype.bits // 8
        assert as_dtype(str(dtype)) is dtype is as_dtype(dtype)
    assert (DType.INT8.min, DType.INT8.max) == (-128, 127)
    assert (DType.UINT64.min, DType.UINT64.max) == (0, 2**64 - 1)
    assert (DType.BOOL.min, DType.BOOL.max) == (0, 1)
    assert [dtype for dtype in DType if dtype.is_signed] == [
        *(dtype for dtype in INTEGERS if str(dtype).startswith("i")),
        *FLOATS,
    ]


def test_as_dtype_unknown_name_lists_the_known() -> None:
    with pytest.raises(InvalidFunction) as error:
        as_dtype("float8")
    known = ", ".join(map(str, DType))
    assert error.value.message == f"dtype: unknown ('float8'); use one of {known}"


@pytest.mark.parametrize("op", BinaryOp)
def test_binary_every_type_is_allowed_as_the_table_says(op: BinaryOp) -> None:
    for dtype in DType:
        if dtype in ALLOWED[op]:
            assert Binary(op, one(dtype), one(dtype)).dtype is dtype
        else:
            with pytest.raises(
                InvalidFunction, match=rf"^{op.value}: not defined for {dtype}; use"
            ):
                Binary(op, one(dtype), one(dtype))


@pytest.mark.parametrize("op", [*BinaryOp, *CompareOp])
def test_operation_on_two_types_is_refused_with_both(op: BinaryOp | CompareOp) -> None:
    make = binary if isinstance(op, BinaryOp) else compare
    with pytest.raises(InvalidFunction) as error:
        make(op, one(DType.INT32), one(DType.INT8))  # type: ignore[arg-type]
    expected = f"{op.value}: int32 with int8; convert one side with .astype('int32')"
    assert error.value.message == expected


def test_compare_every_type_gives_bool() -> None:
    for op in CompareOp:
        for dtype in DType:
            assert Compare(op, one(dtype), one(dtype)).dtype is DType.BOOL


def test_select_condition_that_is_no_bool_is_refused() -> None:
    with pytest.raises(InvalidFunction, match=r"^where: condition is int64; compare something"):
        select(X, 1, X)
    with pytest.raises(InvalidFunction, match=r"^where: int64 with int8; .*\.astype\('int64'\)$"):
        Select(X < 3, X, one(DType.INT8))
    assert select(X < 3, 1, X) == Select(X < 3, const(1, "int64"), X)


@pytest.mark.parametrize("op", MathOp)
def test_math_of_every_type_is_defined_for_floats_only(op: MathOp) -> None:
    for dtype in DType:
        if dtype.is_float:
            assert Math(op, one(dtype)).dtype is dtype
        else:
            with pytest.raises(InvalidFunction, match=rf"^{op.value}: of {dtype}; .astype a float"):
                Math(op, one(dtype))


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if not dtype.is_float])
def test_const_of_integer_type_takes_its_range_and_no_more(dtype: DType) -> None:
    for value in (dtype.min, dtype.max, float(dtype.max) if dtype.bits < 53 else 1.0):
        made = const(value, dtype)
        assert (made.value, made.dtype) == (value, dtype)
        assert type(made.value) is (bool if dtype is DType.BOOL else int)
    for value in (dtype.min - 1, dtype.max + 1, 0.5, math.inf, -math.inf, math.nan, 10**400):
        with pytest.raises(InvalidFunction) as error:
            const(value, dtype)
        assert error.value.message == (
            f"constant: {value!r} is no {dtype}; use {dtype.min} to {dtype.max}, "
            f"or .astype the other side"
        )


def test_const_of_float_type_is_rounded_to_it() -> None:
    assert const(0.1, "float32").value == 0.10000000149011612
    assert const(0.1, "float64").value == 0.1
    assert const(1e-60, "float32").value == 0.0
    assert const(3.4028235e38, "float32").value == 3.4028234663852886e38
    assert const(-math.inf, "float32").value == -math.inf
    assert math.isnan(const(math.nan, "float32").value)
    assert const(True, "float32") == Const(1.0, DType.FLOAT32)


@pytest.mark.parametrize(
    ("value", "dtype"), [(1e39, "float32"), (10**400, "float32"), (10**400, "float64")]
)
def test_const_beyond_the_largest_float_is_refused(value: float, dtype: str) -> None:
    with pytest.raises(
        InvalidFunction, match=rf"^constant: .* is no {dtype}; use a smaller number"
    ):
        const(value, dtype)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (300, DType.INT8),
        (-1, DType.UINT8),
        (2, DType.BOOL),
        (1, DType.BOOL),
        (True, DType.INT32),
        (1.0, DType.INT32),
        (1, DType.FLOAT32),
        (0.1, DType.FLOAT32),
        (1e39, DType.FLOAT32),
    ],
)
def test_constant_node_with_a_value_of_another_type_is_refused(value: float, dtype: DType) -> None:
    with pytest.raises(InvalidFunction, match=rf"^constant: .* is no {dtype}; "):
        Const(value, dtype)


def test_constant_nodes_are_equal_only_with_the_same_bits() -> None:
    assert const(math.nan, "float32") == const(math.nan, "float32")
    assert hash(const(math.nan, "float32")) == hash(const(math.nan, "float32"))
    assert const(0.0, "float32") != const(-0.0, "float32")
    assert const(1, "int8") != const(1, "int16")
    assert const(1, "float32") != const(1, "int32")
    assert const(5, "int8") == const(5, "int8") != const(6, "int8")
    assert const(1, "int8") != 1


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x: x + 1, Binary(BinaryOp.ADD, X, const(1, "int64"))),
        (lambda x: 1 + x, Binary(BinaryOp.ADD, const(1, "int64"), X)),
        (lambda x: x - 1, Binary(BinaryOp.SUB, X, const(1, "int64"))),
        (lambda x: 1 - x, Binary(BinaryOp.SUB, const(1, "int64"), X)),
        (lambda x: 2 * x, Binary(BinaryOp.MUL, const(2, "int64"), X)),
        (lambda x: 7 // x, Binary(BinaryOp.FLOORDIV, const(7, "int64"), X)),
        (lambda x: x // 7, Binary(BinaryOp.FLOORDIV, X, const(7, "int64"))),
        (lambda x: 7 % x, Binary(BinaryOp.FLOORMOD, const(7, "int64"), X)),
        (lambda x: x % 7, Binary(BinaryOp.FLOORMOD, X, const(7, "int64"))),
        (lambda x: x & 3, Binary(BinaryOp.AND, X, const(3, "int64"))),
        (lambda x: x | 3, Binary(BinaryOp.OR, X, const(3, "int64"))),
        (lambda x: x ^ 3, Binary(BinaryOp.XOR, X, const(3, "int64"))),
        (lambda x: x << 3, Binary(BinaryOp.SHL, X, const(3, "int64"))),
        (lambda x: 3 << x, Binary(BinaryOp.SHL, const(3, "int64"), X)),
        (lambda x: x >> 3, Binary(BinaryOp.SHR, X, const(3, "int64"))),
        (operator.neg, Binary(BinaryOp.SUB, const(0, "int64"), X)),
        (operator.invert, Binary(BinaryOp.XOR, X, const(-1, "int64"))),
        (lambda x: x < 3, Compare(CompareOp.LT, X, const(3, "int64"))),
        (lambda x: x <= 3, Compare(CompareOp.LE, X, const(3, "int64"))),
        (lambda x: x > 3, Compare(CompareOp.GT, X, const(3, "int64"))),
        (lambda x: x >= 3, Compare(CompareOp.GE, X, const(3, "int64"))),
        (lambda x: x.eq(3), Compare(CompareOp.EQ, X, const(3, "int64"))),
        (lambda x: x.ne(3), Compare(CompareOp.NE, X, const(3, "int64"))),
        (lambda x: x.astype("int64"), X),
        (lambda x: x.astype("int8"), Cast(DType.INT8, X)),
    ],
)
def test_python_operator_makes_the_node_in_the_same_order(
    build: Callable[[Expr], Expr], expected: Expr
) -> None:
    assert build(X) == expected


def test_negation_and_inversion_depend_on_the_type() -> None:
    f, u, b = one(DType.FLOAT32), one(DType.UINT8), one(DType.BOOL)
    assert -f == Binary(BinaryOp.MUL, f, const(-1.0, "float32"))
    assert f / 2 == Binary(BinaryOp.DIV, f, const(2.0, "float32"))
    assert 2 / f == Binary(BinaryOp.DIV, const(2.0, "float32"), f)
    assert ~u == Binary(BinaryOp.XOR, u, const(255, "uint8"))
    assert ~b == Binary(BinaryOp.XOR, b, const(True, "bool"))


def test_operator_python_number_outside_the_other_type_is_refused() -> None:
    with pytest.raises(InvalidFunction, match=r"^constant: 256 is no uint8; use 0 to 255, or"):
        one(DType.UINT8) + 256
    with pytest.raises(InvalidFunction, match=r"^constant: 1.5 is no int64; "):
        X * 1.5


def test_operation_on_two_python_numbers_is_refused() -> None:
    with pytest.raises(InvalidFunction, match=r"both sides are Python numbers \(1, 2\); compute"):
        binary(BinaryOp.ADD, 1, 2)


def test_expression_as_python_truth_value_is_refused() -> None:
    with pytest.raises(InvalidFunction, match=r"^expression: used as a Python truth value; use te"):
        bool(X < 3)


def test_walk_yields_parents_first_from_left_to_right() -> None:
    load = Load(Buffer("b", DType.INT64, (4,), 8), (X,))
    tree = (load + 1) * 2
    assert list(walk(tree)) == [tree, load + 1, load, X, const(1, "int64"), const(2, "int64")]
