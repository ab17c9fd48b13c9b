"""The surrogate's kernel: what it says of likeness, and what a fit finds out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from farm.tune import Search, Space
from farm.tune.strategies.kernel import Columns, Kernel, fitted
from farm.tune.strategies.surrogate import FIRST, NEAR

GRID = np.array([[a / 7, b / 7, c] for a in range(8) for b in range(8) for c in (0.0, 1.0)])


def matern(distance: float) -> float:
    scaled = math.sqrt(5) * distance
    return (1 + scaled + scaled**2 / 3) * math.exp(-scaled)


def test_covariance_is_the_product_of_what_each_feature_says() -> None:
    kernel = Kernel(np.array([0.5, 2.0, 9.0]), 0.01, 1.5)
    found = kernel(GRID[:5], Columns.of(GRID[10:40]))
    for row, a in enumerate(GRID[:5]):
        for column, b in enumerate(GRID[10:40]):
            wanted = 1.0
            for x, y, length in zip(a, b, kernel.lengths, strict=True):
                wanted *= (1 + 1.5 * matern(abs(x - y) / length)) / 2.5
            assert found[row, column] == pytest.approx(wanted, rel=1e-12)


def test_inverse_factor_is_that_of_the_covariance_with_noise() -> None:
    kernel = Kernel(np.array([0.5, 2.0, 9.0]), 0.01, 1.5)
    x = GRID[::5]
    inverse = kernel.inverse_factor(x)
    covariance = kernel(x, Columns.of(x)) + 0.01 * np.eye(len(x))
    assert np.allclose(inverse @ covariance @ inverse.T, np.eye(len(x)))


def test_fit_finds_out_which_features_matter() -> None:
    rng = np.random.default_rng(1)
    x = GRID[rng.choice(len(GRID), 40, replace=False)]
    y = np.sin(6 * x[:, 0])  # the others do not matter
    kernel = None
    for _ in range(4):
        kernel = fitted(x, (y - y.mean()) / y.std(), kernel, rng)
    assert kernel is not None
    assert kernel.lengths[1:].min() > 5 * kernel.lengths[0]


def test_fit_of_what_adds_up_foresees_what_it_never_saw_together() -> None:
    rng = np.random.default_rng(2)
    cost = (GRID[:, 0] - 0.4) ** 2 + (GRID[:, 1] - 0.6) ** 2 + 0.2 * GRID[:, 2]
    seen = (GRID[:, 0] == 0) | (GRID[:, 1] == 0)  # along two edges
    x, y = GRID[seen], cost[seen]
    y = (y - y.mean()) / y.std()
    kernel = None
    for _ in range(4):
        kernel = fitted(x, y, kernel, rng)
    assert kernel is not None
    inverse = kernel.inverse_factor(x)
    expected = (inverse @ y) @ (inverse @ kernel(x, Columns.of(GRID)))
    assert cost[expected.argmin()] <= np.sort(cost)[4]


def test_surrogate_looks_around_the_best_in_turns() -> None:
    space = Space({name: range(12) for name in "abcd"})
    search = Search(space, seed=3, strategy="surrogate")
    near = []
    for count in range(50):
        (number,) = search.ask()
        ours = space.configuration(number)
        if count >= FIRST:
            assert search.best is not None
            near.append(sum(ours[name] != search.best[0][name] for name in "abcd") == 1)
        apart = [int(value) - at for value, at in zip(ours.values(), (3, 5, 7, 9), strict=True)]
        search.tell(number, 1 + sum(each**2 for each in apart))
    assert all(near[NEAR - 1 :: NEAR])
    assert not all(near)
