"""Arrays of short calls as strings of bytes, there and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from farm.artifact import ParamSpec, Signature
from farm.client.layout import layout_of
from farm.core.elements import numpy_dtype
from farm.errors import InvalidArguments

DTYPES = st.sampled_from(
    ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"]
)
SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
SPECS = st.lists(st.tuples(DTYPES, SHAPES), min_size=1, max_size=3)


def echo(specs):
    """Return the layout of a function whose arrays are all inout."""
    params = (ParamSpec(f"x{n}", *spec, "inout") for n, spec in enumerate(specs))
    return layout_of("f", Signature(tuple(params)))


@given(SPECS, st.integers(1, 4), st.data())
def test_what_is_packed_comes_back(specs, calls, data):
    layout = echo(specs)
    given_arrays = [
        [data.draw(arrays.arrays(dtype, shape)) for dtype, shape in specs] for _ in range(calls)
    ]
    packed = b"".join(b"".join(layout.pack(one)) for one in given_arrays)
    assert len(packed) == calls * layout.input_bytes == calls * layout.output_bytes
    for one, back in zip(given_arrays, layout.unpack_all(packed, calls), strict=True):
        for array, result in zip(one, back if len(specs) > 1 else [back], strict=True):
            assert (result.dtype, result.shape) == (array.dtype, array.shape)
            assert result.tobytes() == array.tobytes()
            assert isinstance(result, np.ndarray)
            assert result.flags.writeable


def test_bfloat16_is_packed_and_unpacked_and_stands_for_nothing_else():
    layout = echo([("bfloat16", (2, 2))])
    array = np.arange(4).reshape(2, 2).astype(numpy_dtype("bfloat16"))
    packed = b"".join(layout.pack([array]))
    (back,) = layout.unpack_all(packed, 1)
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes() == packed
    for wrong in ("float16", "uint16", "V2"):
        with pytest.raises(InvalidArguments, match=r"pass bfloat16\[2, 2\]"):
            layout.pack([array.view(wrong)])


def test_array_in_another_order_is_packed_row_by_row():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    layout = echo([("int32", (2, 3))])
    assert layout.pack([np.asfortranarray(array)]) == [array.tobytes()]


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [np.zeros(2, np.int32)] * 2,
        [np.zeros(3, np.int32)],
        [np.zeros(2, np.int64)],
        [np.zeros(2, ">i4")],
        [[0, 0]],
    ],
)
def test_arrays_that_do_not_fit_are_refused(wrong):
    with pytest.raises(InvalidArguments):
        echo([("int32", (2,))]).pack(wrong)


def test_function_with_a_large_array_has_no_layout():
    assert echo([("uint8", (256 << 10,))]) is not None
    assert echo([("uint8", ((256 << 10) + 1,))]) is None
