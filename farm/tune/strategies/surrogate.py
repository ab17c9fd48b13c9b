"""Surrogate search: a Gaussian process of the costs says where an improvement is most likely.

Owns the model and the choice by expected improvement. Source: Jones, Schonlau and Welch 1998, "Efficient global
optimization of expensive black-box functions"; the kernel is Matern 5/2 with a length for each feature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farm.tune.history import History

FIRST = 12
"""Configurations far from each other before the model is asked."""
REFIT = 8
"""Results between two searches for better lengths."""
TRIALS = 40
POOL = 1000
AROUND = 5
MAX_LISTED = 8000
"""Spaces of up to so many configurations are looked at whole."""
MAX_RESULTS = 400
"""Results that the model sees, the best and the latest: its cost grows with their cube."""
SPREAD = 50
MARGIN = 0.01

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Kernel:
    """Matern 5/2 with noise: how alike two configurations' costs are."""

    lengths: Floats
    noise: float

    def __call__(self, a: Floats, b: Floats) -> Floats:
        """Return the covariance of each of `a` with each of `b`, for a variance of 1."""
        x, y = a / self.lengths, b / self.lengths
        square = (x * x).sum(1)[:, None] + (y * y).sum(1)[None] - 2 * x @ y.T
        distance = np.sqrt(5 * np.maximum(square, 0))
        result: Floats = (1 + distance + distance * distance / 3) * np.exp(-distance)
        return result

    def inverse_factor(self, x: Floats) -> Floats:
        """Return the inverse of the lower factor of the covariance of `x`, noise included."""
        factor = np.linalg.cholesky(self(x, x) + self.noise * np.eye(len(x)))
        inverse: Floats = np.linalg.solve(factor, np.eye(len(x)))
        return inverse

    def loss(self, x: Floats, y: Floats) -> float:
        """Return the negative log likelihood, the variance maximised out, with a prior on the lengths."""
        try:
            factor = np.linalg.cholesky(self(x, x) + self.noise * np.eye(len(x)))
        except np.linalg.LinAlgError:
            return math.inf
        white = np.linalg.solve(factor, y)
        variance = max(float(white @ white) / len(y), 1e-12)
        prior = 0.5 * float(((np.log(self.lengths / 0.5) / 1.5) ** 2).sum())
        return 0.5 * len(y) * math.log(variance) + float(np.log(np.diag(factor)).sum()) + prior


class Surrogate:
    """Chooses by expected improvement under a Gaussian process."""

    name = "surrogate"

    def __init__(self) -> None:
        self._kernel: Kernel | None = None
        self._fitted = 0
        self._learnt: list[int] = []
        self._posterior: Posterior | None = None

    def propose(self, history: History, rng: np.random.Generator, count: int) -> list[int]:
        """Return the configurations with the greatest expected improvement, one after the other.

        Each is taken to come out as expected, so that the next is not one that would tell the same.
        """
        if len(history.costs) + len(history.pending) < FIRST or history.best is None:
            return [_apart(history, rng)]
        posterior, pool = self._believed(history, rng)
        costs = np.array([history.costs[number] for number in self._learnt])
        posterior.take(_standardised(costs))
        for number in history.pending:
            posterior.expect(history.features([number]))
        places = {number: place for place, number in enumerate(pool)}
        for number in (*history.costs, *history.pending):
            if number in places:
                posterior.exclude(places[number])
        chosen = []
        for _ in range(min(count, len(history.fresh(pool)))):
            place = posterior.most_promising()
            chosen.append(pool[place])
            posterior.expect(posterior.candidates[[place]])
            posterior.exclude(place)
        return chosen

    def learn(self, history: History, number: int) -> None:
        """Learn nothing beyond the history."""

    def _believed(
        self, history: History, rng: np.random.Generator
    ) -> tuple[Posterior, Sequence[int]]:
        """Return the model with all results that it is to see, and the configurations to choose from."""
        listed = history.space.listed and history.space.size <= MAX_LISTED
        refit = self._kernel is None or len(history.costs) - self._fitted >= REFIT
        if refit:
            self._learnt = _worth_learning(history)
            self._fit(history, rng)
        else:
            known = set(self._learnt)
            self._learnt += [number for number in history.costs if number not in known]
        assert self._kernel is not None
        pool: Sequence[int] = range(history.space.size) if listed else _pool(history, rng)
        if refit or not listed or self._posterior is None:
            self._posterior = Posterior(self._kernel, history.features(pool))
        self._posterior.see(history.features(self._learnt))
        return self._posterior, pool

    def _fit(self, history: History, rng: np.random.Generator) -> None:
        """Look for better lengths around those known."""
        x = history.features(self._learnt)
        y = _standardised(np.array([history.costs[number] for number in self._learnt]))
        best = self._kernel or Kernel(np.full(x.shape[1], 0.5), 1e-2)
        loss = best.loss(x, y)
        for _ in range(TRIALS):
            change = rng.normal(0, 0.5, x.shape[1]) * (rng.random(x.shape[1]) < 0.5)
            lengths = np.clip(best.lengths * np.exp(change), 0.05, 5)
            noise = float(np.clip(best.noise * math.exp(rng.normal(0, 0.7)), 1e-4, 0.3))
            trial = Kernel(lengths, noise)
            trial_loss = trial.loss(x, y)
            if trial_loss < loss:
                best, loss = trial, trial_loss
        self._kernel, self._fitted = best, len(history.costs)


class Posterior:
    """What is believed of candidates, given results and what is under way.

    Rows are added one by one: of the inverse of the covariance's lower factor, and of that times the covariance with
    the candidates. Adding one costs as much as multiplying it with all others, not as much as starting anew.

    Parameters
    ----------
    candidates
        Features, shape (candidates, features).
    """

    def __init__(self, kernel: Kernel, candidates: Floats) -> None:
        self.candidates = candidates
        self._kernel = kernel
        self._seen = self._count = 0
        self._x = np.zeros((0, candidates.shape[1]))
        self._inverse, self._spread = np.zeros((0, 0)), np.zeros((0, len(candidates)))
        self._certain: Floats = np.ones(len(candidates))
        self._left = self._mean = self._certain
        self._variance, self._best = 1.0, 0.0
        self._open = np.ones(len(candidates), np.bool_)

    def see(self, features: Floats) -> None:
        """Take results, the first of which may have been seen before; what was only expected is forgotten."""
        self._count = self._seen
        if self._seen == 0:
            self._start(features)
        for row in features[self._seen :]:
            self._certain = self._certain - self._add(row[None])
        self._seen = self._count

    def take(self, costs: Floats) -> None:
        """Learn the standardised costs of what was seen, and start to choose."""
        n = self._seen
        white = self._inverse[:n, :n] @ costs
        self._variance = max(float(white @ white) / n, 1e-12)
        self._mean = white @ self._spread[:n]
        self._left = self._certain
        self._best = float(costs.min())
        self._open[:] = True

    def expect(self, features: Floats) -> None:
        """Take a configuration to come out as expected: the mean stays, the doubt around it goes."""
        self._left = self._left - self._add(features)

    def exclude(self, place: int) -> None:
        """Choose this candidate no more."""
        self._open[place] = False

    def most_promising(self) -> int:
        """Return the place of the open candidate with the greatest expected improvement."""
        deviation = np.sqrt(self._variance * np.maximum(self._left, 1e-12))
        improvement = _expected_improvement(self._mean, deviation, self._best - MARGIN)
        return int(np.where(self._open, improvement, -1.0).argmax())

    def _start(self, features: Floats) -> None:
        n = len(features)
        self._grow(n)
        inverse = self._kernel.inverse_factor(features)
        spread = inverse @ self._kernel(features, self.candidates)
        self._x[:n], self._inverse[:n, :n], self._spread[:n] = features, inverse, spread
        self._certain = 1 - (spread * spread).sum(0)
        self._seen = self._count = n

    def _add(self, features: Floats) -> Floats:
        """Add a row; return how much doubt it takes from each candidate."""
        n = self._count
        self._grow(n + 1)
        inverse, spread = self._inverse, self._spread
        own = inverse[:n, :n] @ self._kernel(self._x[:n], features)[:, 0]
        scale = math.sqrt(max(1 + self._kernel.noise - float(own @ own), 1e-9))
        inverse[n, :n], inverse[n, n] = -(own @ inverse[:n, :n]) / scale, 1 / scale
        row = (self._kernel(features, self.candidates)[0] - own @ spread[:n]) / scale
        spread[n], self._x[n] = row, features[0]
        self._count += 1
        result: Floats = row * row
        return result

    def _grow(self, rows: int) -> None:
        have = len(self._x)
        if rows > have:
            more = max(rows - have, 64)
            self._x = np.pad(self._x, ((0, more), (0, 0)))
            self._spread = np.pad(self._spread, ((0, more), (0, 0)))
            self._inverse = np.pad(self._inverse, ((0, more), (0, more)))


def _apart(history: History, rng: np.random.Generator) -> int:
    """Return the one of some random configurations that is farthest from all asked for."""
    drawn = history.fresh(history.space.draw(rng, SPREAD)) or [history.any_new(rng)]
    taken = [*history.costs, *history.pending]
    if not taken:
        return drawn[0]
    x, y = history.features(drawn), history.features(taken)
    nearest = ((x[:, None] - y[None]) ** 2).sum(2).min(1)
    return drawn[int(nearest.argmax())]


def _pool(history: History, rng: np.random.Generator) -> list[int]:
    """Return some configurations at random, and what lies around the best."""
    drawn = history.space.draw(rng, POOL)
    for number in history.ranked()[:AROUND]:
        drawn += history.space.neighbours(number)
    return history.fresh(list(dict.fromkeys(drawn))) or [history.any_new(rng)]


def _worth_learning(history: History) -> list[int]:
    """Return the configurations that the model learns from: all, or the best and the latest."""
    numbers = list(history.costs)
    if len(numbers) > MAX_RESULTS:
        best = sorted(numbers, key=history.costs.__getitem__)[: MAX_RESULTS // 2]
        chosen = set(best)
        latest = [number for number in reversed(numbers) if number not in chosen]
        numbers = best + latest[: MAX_RESULTS - len(best)]
    return numbers


def _standardised(costs: Floats) -> Floats:
    """Return log costs with mean 0 and variance 1; failures as bad as the worst, the slow half flattened.

    Only where the good ones are matters: how slow a slow one is says little about that.
    """
    good = np.isfinite(costs)
    logs = np.log(np.maximum(costs, 1e-300), where=good, out=np.zeros_like(costs))
    logs[~good] = logs[good].max()
    middle, least = float(np.median(logs)), float(logs.min())
    if middle > least:
        logs = np.minimum(logs, 2 * middle - least)
    result: Floats = (logs - logs.mean()) / (logs.std() + 1e-9)
    return result


def _expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    score = (best - mean) / deviation
    density = np.exp(-score * score / 2) / math.sqrt(2 * math.pi)
    # The normal distribution function, to 1e-7: Abramowitz and Stegun 7.1.26, for erf.
    z = np.abs(score) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    erf = np.sign(score) * (1 - series * np.exp(-z * z))
    result: Floats = deviation * (score * (1 + erf) / 2 + density)
    return result
