"""What counts as right: whole kinds of wrong arrays, and rounding that is none."""

from __future__ import annotations

import numpy as np
import pytest
from farm_agents.worker.inputs import GENERATED, Case, generate
from farm_agents.worker.numerics import TOLERANCE, wrong
from hypothesis import given
from hypothesis import strategies as st

from farm.artifact import ParamSpec, Signature
from farm.core.elements import NAMES, numpy_dtype


def signature(dtype, shape=(6, 8)):
    return Signature((ParamSpec("y", dtype, shape, "output"),))


def judge(found, right, dtype="float32", tolerance=0.0):
    return wrong(signature(dtype, found.shape), [found], [right], tolerance)


@given(seed=st.integers(0, 2**32), scale=st.floats(1e-20, 1e20))
def test_rounding_to_the_type_is_right_at_any_magnitude(seed, scale):
    exact = np.random.default_rng(seed).normal(size=(6, 8)) * scale
    assert judge(exact.astype(np.float32), exact) == ""


@given(
    seed=st.integers(0, 2**32),
    place=st.tuples(st.integers(0, 5), st.integers(0, 7)),
    scale=st.floats(1e-6, 1e6),
    off=st.sampled_from([2e-4, -1e-3, 1.0, np.nan, np.inf]),
)
def test_one_wrong_element_is_found_in_its_place(seed, place, scale, off):
    exact = np.random.default_rng(seed).normal(size=(6, 8)) * scale
    found = exact.astype(np.float32)
    found[place] += off * np.abs(exact[place[0]]).max()
    said = judge(found, exact)
    assert said.startswith(f"y[{place[0]}, {place[1]}] is"), said
    assert "(1 of 48 elements are wrong)" in said


def test_a_row_is_judged_by_its_own_magnitude():
    exact = np.outer([1e6, 1.0], np.ones(4))
    found = exact.astype(np.float32)
    found[1, 2] += 0.05
    assert judge(found, exact) == ""  # below a thousandth of the largest of all
    exact = np.outer([100.0, 1.0], np.ones(4))
    found = exact.astype(np.float32)
    found[1, 2] += 0.001
    assert judge(found, exact).startswith("y[1, 2]")


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
def test_infinities_and_nans_must_be_those_of_the_reference(dtype):
    right = np.array([[1.0, np.inf, -np.inf, np.nan]])
    found = right.astype(numpy_dtype(dtype))
    assert judge(found, right, dtype) == ""
    for index, value in ((1, -np.inf), (2, 0.0), (3, 1.0), (0, np.nan)):
        changed = found.copy()
        changed[0, index] = value
        assert judge(changed, right, dtype) != "", (index, value)


def test_value_beyond_the_type_is_infinite_and_right():
    assert judge(np.array([np.inf, 1], np.float32), np.array([1e300, 1.0])) == ""


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "int64", "bool"])
def test_integers_are_equal_or_wrong(dtype):
    right = np.zeros((3, 4), dtype)
    assert judge(right.copy(), right, dtype) == ""
    found = right.copy()
    found[2, 1] = 1
    assert judge(found, right, dtype).startswith("y[2, 1] is")


def test_outputs_of_another_form_are_wrong():
    assert "reference has" in judge(np.zeros(3, np.float32), np.zeros(4))
    assert "reference has" in judge(np.zeros(3, np.float32), np.zeros(3, np.int32))
    assert "outputs" in wrong(signature("float32"), [], [np.zeros(3)], 0)


def test_tolerance_of_the_caller_counts():
    exact = np.ones((1, 4))
    found = exact.astype(np.float32)
    found[0, 2] += 0.01
    assert judge(found, exact) != ""
    assert judge(found, exact, tolerance=0.1) == ""


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("case", GENERATED)
def test_inputs_depend_on_seed_name_and_case_alone(dtype, case):
    params = tuple(ParamSpec(name, dtype, (5, 16), "input") for name in ("a", "b"))
    one = generate(Signature(params), 1, case)
    again = generate(Signature(params), 1, case)
    other = generate(Signature(params), 2, case)
    for x, y, z in zip(one, again, other, strict=True):
        assert (x.dtype, x.shape) == (numpy_dtype(dtype), (5, 16))
        assert x.tobytes() == y.tobytes()
        assert x.tobytes() != z.tobytes()
    assert one[0].tobytes() != one[1].tobytes()


def test_typical_floats_sum_up_exactly_in_any_order_and_random_ones_do_not():
    spec = Signature((ParamSpec("a", "float32", (4096,), "input"),))
    (typical,) = generate(spec, 3, Case.TYPICAL)
    assert (typical == 0).any()
    assert np.float32(sum(typical.tolist())) == typical[::-1].sum(dtype=np.float32)
    (uneven,) = generate(spec, 3, Case.RANDOM)
    assert np.abs(uneven).max() < 1
