"""A small function that warms workers up.

Owns: that function. Does not own: compiling or running it.

Invariant: it needs nothing but what each target can do.
"""

from __future__ import annotations

from farm.api.v1 import ir_pb2

SMALL_EXTENT = 8


def small_function() -> bytes:
    """Return ``small``: ``y[i] = x[i] + 1`` over 8 int32, serialised."""
    x, y = (ir_pb2.Buffer(name=name, dtype="int32", shape=[SMALL_EXTENT]) for name in "xy")
    index = ir_pb2.Expr(var="i")
    load = ir_pb2.Expr(load=ir_pb2.Load(buffer="x", indices=[index]))
    one = ir_pb2.Expr(const=ir_pb2.Const(dtype="int32", int_value=1))
    add = ir_pb2.Expr(binary=ir_pb2.Binary(op="add", a=load, b=one))
    store = ir_pb2.Stmt(store=ir_pb2.Store(buffer="y", indices=[index], value=add))
    loop = ir_pb2.For(var="i", extent=SMALL_EXTENT, body=store)
    function = ir_pb2.Function(
        name="small",
        params=[
            ir_pb2.Param(buffer=x, role=ir_pb2.ROLE_INPUT),
            ir_pb2.Param(buffer=y, role=ir_pb2.ROLE_OUTPUT),
        ],
        body=ir_pb2.Stmt(for_loop=loop),
    )
    return function.SerializeToString(deterministic=True)
