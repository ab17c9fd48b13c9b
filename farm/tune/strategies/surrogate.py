"""Surrogate search: a Gaussian process of the costs says where an improvement is most likely.

Owns what is believed and the choice by expected improvement. Does not own how alike configurations are (`kernel`).
Source: Jones, Schonlau and Welch 1998, "Efficient global optimization of expensive black-box functions".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from farm.tune.history import History
from farm.tune.strategies.kernel import Columns, Floats, Kernel, fitted

FIRST = 10
"""Configurations far from each other before the model is asked."""
REFIT = 8
"""Results between two searches for better lengths, at most; an eighth of those there are, if that is fewer."""
NEAR = 2
"""One of so many proposals differs from the best in one parameter: how steps look near it, the model knows last."""
POOL = 1000
AROUND = 5
MAX_LISTED = 8000
"""Spaces of up to so many configurations are looked at whole."""
MAX_RESULTS = 400
"""Results that the model sees, the best and the latest: its cost grows with their cube."""
SPREAD = 50
MARGIN = 0.001


class Surrogate:
    """Chooses by expected improvement under a Gaussian process."""

    name = "surrogate"

    def __init__(self) -> None:
        self._kernel: Kernel | None = None
        self._fitted = 0
        self._learnt: list[int] = []
        self._posterior: Posterior | None = None
        self._turn = 0

    def propose(self, history: History, rng: np.random.Generator, count: int) -> list[int]:
        """Return the configurations with the greatest expected improvement, one by one, in turns near the best.

        Each is taken to come out as expected, so that the next is not one that would tell the same.
        """
        if len(history.costs) + len(history.pending) < FIRST or history.best is None:
            return [_apart(history, rng)]
        posterior, pool = self._believed(history, rng)
        posterior.take(_standardised(history, self._learnt))
        for number in history.pending:
            posterior.expect(history.features([number]))
        places = {number: place for place, number in enumerate(pool)}
        for number in (*history.costs, *history.pending):
            if number in places:
                posterior.exclude(places[number])
        near = [
            places[each] for each in history.space.neighbours(history.best[0]) if each in places
        ]
        chosen = []
        for _ in range(min(count, len(history.fresh(pool)))):
            self._turn += 1
            place = posterior.most_promising(near if self._turn % NEAR == 0 else ())
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
        due = max(1, min(REFIT, len(history.costs) // REFIT))
        refit = self._kernel is None or len(history.costs) - self._fitted >= due
        if refit:
            self._learnt = _worth_learning(history)
            costs = _standardised(history, self._learnt)
            self._kernel = fitted(history.features(self._learnt), costs, self._kernel, rng)
            self._fitted = len(history.costs)
        else:
            known = set(self._learnt)
            self._learnt += [number for number in history.costs if number not in known]
        assert self._kernel is not None
        pool: Sequence[int] = range(history.space.size) if listed else _pool(history, rng)
        if refit or not listed or self._posterior is None:
            self._posterior = Posterior(self._kernel, history.features(pool))
        self._posterior.see(history.features(self._learnt))
        return self._posterior, pool


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
        self._columns = Columns.of(candidates)
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

    def most_promising(self, among: Sequence[int] = ()) -> int:
        """Return the place of the open candidate with the greatest expected improvement; of some, if one is open."""
        deviation = np.sqrt(self._variance * np.maximum(self._left, 1e-12))
        improvement = _expected_improvement(self._mean, deviation, self._best - MARGIN)
        if len(some := [place for place in among if self._open[place]]):
            return some[int(improvement[some].argmax())]
        return int(np.where(self._open, improvement, -1.0).argmax())

    def _start(self, features: Floats) -> None:
        n = len(features)
        self._grow(n)
        inverse = self._kernel.inverse_factor(features)
        spread = inverse @ self._kernel(features, self._columns)
        self._x[:n], self._inverse[:n, :n], self._spread[:n] = features, inverse, spread
        self._certain = 1 - (spread * spread).sum(0)
        self._seen = self._count = n

    def _add(self, features: Floats) -> Floats:
        """Add a row; return how much doubt it takes from each candidate."""
        n = self._count
        self._grow(n + 1)
        inverse, spread = self._inverse, self._spread
        own = inverse[:n, :n] @ self._kernel(self._x[:n], Columns.of(features))[:, 0]
        scale = math.sqrt(max(1 + self._kernel.noise - float(own @ own), 1e-9))
        inverse[n, :n], inverse[n, n] = -(own @ inverse[:n, :n]) / scale, 1 / scale
        row = (self._kernel(features, self._columns)[0] - own @ spread[:n]) / scale
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


def _standardised(history: History, numbers: Sequence[int]) -> Floats:
    """Return log costs with mean 0 and variance 1; failures as bad as the worst, the slow half flattened.

    Only where the good ones are matters: how slow a slow one is says little about that.
    """
    costs = np.array([history.costs[number] for number in numbers], np.float64)
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
