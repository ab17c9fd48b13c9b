"""The cut of a function into kernels, the text of its operations, and the head of its section."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm import te
from farm.artifact.opencl import Head, Launch, split_head, with_head
from farm.codegen.opencl.compile import compile_opencl
from farm.codegen.opencl.expressions import Expressions, constant
from farm.codegen.opencl.kernels import find_kernels
from farm.errors import ArtifactError, UnsupportedFunction
from farm.ir import DType
from farm.ir.expr import Binary, BinaryOp, Const
from farm.ir.stmt import For, LoopKind
from farm.target import Target

OPENCL = Target.parse("opencl")


def softmax(rows=4, columns=8):
    x = te.placeholder((rows, columns), "float32", name="x")
    k = te.reduce_axis(columns, "k")
    most = te.compute((rows,), lambda i: te.max(x[i, k], k), name="most")
    y = te.compute((rows, columns), lambda i, j: te.exp(x[i, j] - most[i]), name="y")
    return te.function("softmax", [x, y])


def test_statements_one_after_the_other_are_kernels_and_share_scratch_memory():
    kernels, scratch_bytes = find_kernels(softmax())
    assert [[n for _, n in kernel.items] for kernel in kernels] == [[4], [4, 8]]
    assert scratch_bytes == 4 * 4
    assert [[b.name for b, _ in kernel.scratch] for kernel in kernels] == [["most"], ["most"]]


def test_reduction_is_no_work_item():
    x = te.placeholder((64,), "float32", name="x")
    k = te.reduce_axis(64, "k")
    total = te.compute((1,), lambda i: te.sum(x[k], k), name="total")
    kernels, _ = find_kernels(te.function("total", [x, total]))
    assert [kernel.items for kernel in kernels] == [((kernels[0].items[0][0], 1),)]


def test_iterations_that_read_what_others_wrote_are_one_work_item():
    x = te.placeholder((8,), "int32", name="x")
    y = te.compute((8,), lambda i: x[i], name="y")
    function = te.function("copy", [x, y])
    loop = function.body
    assert isinstance(loop, For)
    store = loop.body
    # y[i] = y[7 - i] + x[i]: iterations touch each other's elements.
    reading = dataclasses.replace(
        store,
        value=Binary(
            BinaryOp.ADD,
            y_load(store, Binary(BinaryOp.SUB, Const(7, DType.INT64), loop.var)),
            store.value,
        ),
    )
    dependent = dataclasses.replace(function, body=dataclasses.replace(loop, body=reading))
    assert find_kernels(function)[0][0].items == ((loop.var.name, 8),)
    assert find_kernels(dependent)[0][0].items == ()
    promised = dataclasses.replace(loop, body=reading, kind=LoopKind.PARALLEL)
    assert find_kernels(dataclasses.replace(function, body=promised))[0][0].items != ()


def y_load(store, index):
    from farm.ir.expr import Load

    return Load(store.buffer, (index,))


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (-(1 << 63), DType.INT64, "(-0x7fffffffffffffffL - 1)"),
        ((1 << 64) - 1, DType.UINT64, "18446744073709551615UL"),
        (-5, DType.INT8, "((char)-5)"),
        (0.1, DType.FLOAT64, "(0x1.999999999999ap-4)"),
        (float("-inf"), DType.FLOAT32, "((float)-INFINITY)"),
        (float("nan"), DType.FLOAT64, "((double)NAN)"),
    ],
)
def test_constant_has_its_exact_value_and_type(value, dtype, text):
    assert constant(value, dtype) == text


def test_signed_sums_are_unsigned_and_divisions_look_at_their_divisor():
    found = Expressions()
    a, b = Const(1, DType.INT16), Const(2, DType.INT16)
    found.text(Binary(BinaryOp.ADD, a, b))
    found.text(Binary(BinaryOp.FLOORDIV, a, b))
    found.text(Binary(BinaryOp.ADD, b, a))
    texts = list(found.helpers.values())
    assert len(texts) == 2
    assert "as_short((ushort)((uint)a + (uint)b))" in texts[0]
    assert "if (b == 0) return 0;" in texts[1]


def test_doubles_are_a_requirement_and_calls_are_refused():
    x = te.placeholder((8,), "float64", name="x")
    double = te.function("f", [x, te.compute((8,), lambda i: x[i] * 2.0, name="y")])
    assert compile_opencl(double, OPENCL).requires == (
        "opencl-c:1.2",
        "opencl-extension:cl_khr_fp64",
    )
    assert compile_opencl(softmax(), OPENCL).requires == ("opencl-c:1.2",)
    out = te.placeholder((8,), "float64", name="out")
    caller = te.sequence("caller", [x], [out], [te.call("f", x, out)])
    with pytest.raises(UnsupportedFunction, match="it calls f; place it on the CPU"):
        compile_opencl(caller, OPENCL)


def test_same_function_gives_the_same_bytes():
    assert compile_opencl(softmax(), OPENCL).data == compile_opencl(softmax(), OPENCL).data


HEADS = st.builds(
    Head,
    st.lists(
        st.builds(
            Launch,
            st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True),
            st.lists(st.integers(1, (1 << 31) - 1), min_size=1, max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
    st.integers(0, 1 << 30),
)


@given(HEADS, st.text(max_size=30))
def test_head_comes_back(head, text):
    assert split_head(with_head(head, text)) == (head, text)


@given(
    st.binary(max_size=60)
    | st.binary(max_size=60).map(lambda data: b"// kernel-farm opencl " + data)
    | st.sampled_from(
        [
            b'// kernel-farm opencl {"launches":[["k",[0]]],"scratch_bytes":0}\n',
            b'// kernel-farm opencl {"launches":[["k",[1,1,1,1]]],"scratch_bytes":0}\n',
            b'// kernel-farm opencl {"launches":[["K;",[1]]],"scratch_bytes":0}\n',
            b'// kernel-farm opencl {"launches":[["k",[true]]],"scratch_bytes":0}\n',
            b'// kernel-farm opencl {"launches":[["k",[1]]],"scratch_bytes":-1}\n',
            b'// kernel-farm opencl {"launches":[["k"]],"scratch_bytes":1}\n',
            b'// kernel-farm opencl {"launches":[],"scratch_bytes":1}\n',
            b"// kernel-farm opencl []\n",
        ]
    )
)
def test_bytes_that_are_no_section_are_refused(data):
    with pytest.raises(ArtifactError, match="opencl: malformed section"):
        split_head(data)
