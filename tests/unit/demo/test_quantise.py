"""Quantisation against float arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.demo.quantise import dense_layer, multiplier_and_shift


@given(st.floats(2.0**-30, 2.0**28))
def test_multiplier_and_shift_of_any_factor_are_within_a_billionth(factor):
    multiplier, shift = multiplier_and_shift(factor)
    assert 1 << 30 <= multiplier < 1 << 31
    assert 2 <= shift <= 62
    assert multiplier / 2**shift == pytest.approx(factor, rel=2.0**-30)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), 1e30, 1e-30])
def test_multiplier_and_shift_of_an_impossible_factor_is_refused(factor):
    with pytest.raises(ValueError, match="factor"):
        multiplier_and_shift(factor)


def test_dense_layer_approximates_the_float_layer():
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(40, 12)), rng.normal(size=12)
    steps = rng.integers(-127, 128, (30, 40))
    exact = steps / 127 @ weight + bias
    output_scale = np.abs(exact).max() / 127
    layer = dense_layer(weight, bias, 1 / 127, output_scale)
    product = steps.astype(np.int64) @ layer.weight + layer.bias
    half = np.int64(1) << (layer.shift - 1).astype(np.int64)
    result = (product * layer.multiplier + half) >> layer.shift
    assert np.abs(result * output_scale - exact).max() < 2 * output_scale
