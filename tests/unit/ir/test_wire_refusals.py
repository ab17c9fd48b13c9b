"""Messages from outside that are no functions: each is refused with the value that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farm.api.v1 import ir_pb2 as pb
from farm.errors import InvalidFunction
from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import Load, Var, select
from farm.ir.function import Function, Param, Role
from farm.ir.stmt import Allocate, Block, Call, For, Stmt, Store
from farm.ir.wire import MAX_BYTES, parse, serialise, to_proto

OUT = Buffer("out", DType.INT64, (4,), 64)
TMP = Buffer("tmp", DType.INT64, (4,), 8)
X, Y = Var("x"), Var("y")


def function(body: Stmt) -> Function:
    return Function("f", (Param(OUT, Role.OUTPUT),), body)


def wrapped(number: int, data: bytes) -> bytes:
    """Return `data` as a length-delimited field."""
    size, length = len(data), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def test_parse_message_nested_beyond_protobuf_is_refused() -> None:
    data = pb.Stmt(call=pb.Call(callee="g", buffers=["out"])).SerializeToString()
    for _ in range(300):  # a block holds a statement: two messages inside each other
        data = wrapped(4, wrapped(1, data))
    params = to_proto(function(Block(()))).params[0].SerializeToString()
    message = wrapped(1, b"f") + wrapped(2, params) + wrapped(3, data)
    with pytest.raises(InvalidFunction, match=r"^function: not a farm.api.v1.Function \("):
        parse(message)


def test_parse_too_many_bytes_is_refused() -> None:
    with pytest.raises(InvalidFunction, match=f"^function: {MAX_BYTES + 1} bytes; use at most"):
        parse(bytes(MAX_BYTES + 1))


def test_parse_too_many_nodes_is_refused_while_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.ir.wire.MAX_NODES", 50)
    monkeypatch.setattr("farm.ir.verifier.MAX_NODES", 10**9)
    with pytest.raises(InvalidFunction, match="over 50 nodes"):
        parse(serialise(function(Block((Call("g", (OUT,)),) * 50))))


def message() -> Any:
    """Return a message to spoil."""
    fill = For(X, 4, Store(TMP, (X,), select(X < 2, X * 3, -1)))
    use = For(Y, 4, Store(OUT, (Y,), Load(TMP, (Y,))))
    return to_proto(function(Allocate(TMP, Block((fill, use)))))


def loop(made: Any) -> Any:
    return made.body.allocate.body.block.stmts[0].for_loop


def value(made: Any) -> Any:
    return loop(made).body.store.value.select


def buffer(**fields: Any) -> Callable[[Any], None]:
    return lambda made: made.params[0].buffer.MergeFrom(pb.Buffer(**fields))


def constant(**fields: Any) -> Callable[[Any], None]:
    return lambda made: value(made).if_false.const.MergeFrom(pb.Const(**fields))


def op(name: str) -> Callable[[Any], None]:
    return lambda made: setattr(value(made).condition.compare, "op", name)


def role(number: int) -> Callable[[Any], None]:
    return lambda made: setattr(made.params[0], "role", number)


EDITS: list[tuple[Callable[[Any], Any], str]] = [
    (role(0), "parameter: unknown role (0); use input, output or inout"),
    (role(9), "parameter: unknown role (9); use input, output or inout"),
    (buffer(dtype="int7"), "dtype: unknown ('int7'); use one of bool,"),
    (buffer(shape=[-5]), "buffer out: impossible shape (4, -5); each extent is at least 1"),
    (buffer(shape=[2**62] * 9), "buffer out: impossible shape (4, 4611686018427387904,"),
    (buffer(shape=[1] * 99), "buffer out: rank 100; use at most 16"),
    (buffer(align_bytes=-8), "buffer out: alignment -8; use a power of two"),
    (lambda m: m.ClearField("body"), "statement: empty or of an unknown kind; update"),
    (lambda m: value(m).ClearField("if_true"), "expression: empty or of an unknown kind"),
    (op("spaceship"), "operation: unknown ('spaceship'); use one of eq, ne,"),
    (lambda m: setattr(m.body.allocate.buffer, "name", "b"), "buffer 'tmp': not in scope; declare"),
    (lambda m: value(m).if_false.const.ClearField("value"), "constant: int64 without int_value"),
    (constant(float_value=1.0), "constant: int64 without int_value; fill it"),
    (constant(dtype="uint8"), "constant: uint8 without uint_value; fill it"),
    (constant(dtype="int8", int_value=300), "constant: 300 is no int8; use -128 to 127"),
    (constant(dtype="bool", int_value=2), "constant: 2 is no bool; use 0 to 1"),
    (constant(dtype="float32", float_value=1e300), "constant: 1e+300 is no float32; use a"),
    (constant(dtype="int8", int_value=3), "where: int64 with int8; convert one side"),
    (lambda m: setattr(m, "name", "no name"), "function: bad name ('no name'); use letters"),
    (lambda m: setattr(loop(m), "extent", 0), "function f: loop x: extent 0; use 1 to"),
    (lambda m: setattr(loop(m), "var", ""), "name: bad name (''); use letters"),
]


@pytest.mark.parametrize(("spoil", "problem"), EDITS, ids=[problem for _, problem in EDITS])
def test_parse_impossible_field_is_refused_with_its_value(
    spoil: Callable[[Any], Any], problem: str
) -> None:
    made = message()
    parse(made.SerializeToString())
    spoil(made)
    with pytest.raises(InvalidFunction) as error:
        parse(made.SerializeToString())
    assert error.value.message.startswith(problem)
