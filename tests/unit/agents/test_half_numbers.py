"""Floats of 16 bits in measuring: inputs that devices make, and what counts as right."""

from __future__ import annotations

import numpy as np
import pytest
from farm_agents.worker.inputs import GENERATED, Case, generate
from farm_agents.worker.numerics import wrong

from farm.artifact import ParamSpec, Signature
from farm.core.elements import numpy_dtype

HALVES = ("float16", "bfloat16")


def signature(dtype):
    return Signature(
        (ParamSpec("x", dtype, (64,), "input"), ParamSpec("y", dtype, (64,), "output"))
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_inputs_are_of_the_type_between_known_ends_and_the_same_for_a_seed(dtype):
    for case in GENERATED:
        (first,), (again,) = (generate(signature(dtype), 7, case) for _ in range(2))
        assert first.dtype == numpy_dtype(dtype)
        assert first.tobytes() == again.tobytes()
        most = 1 if case is Case.RANDOM else 3
        assert 0 < np.abs(first.astype(np.float32)).max() <= most


@pytest.mark.parametrize("dtype", HALVES)
def test_output_that_is_rounded_is_right_and_one_that_is_off_is_named(dtype):
    exact = np.linspace(-3, 5, 64)
    found = exact.astype(numpy_dtype(dtype))
    assert wrong(signature(dtype), [found], [exact], 0) == ""
    found[9] = 4
    assert wrong(signature(dtype), [found], [exact], 0).startswith("y[9] is 4")
    assert "where the reference has int32" in wrong(
        signature(dtype), [found], [exact.astype("i4")], 0
    )
