"""How alike two configurations' costs are: the covariance of the surrogate's Gaussian process, and fitting it.

Owns the kernel and its parameters. Source: Duvenaud, Nickisch and Rasmussen 2011, "Additive Gaussian processes": what a
feature does alone shows after few results, how it acts together with others after more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TRIALS = 80
PATIENCE = 5000
"""Trials times results of one fit, from where on there are fewer trials."""
USUAL = np.log((0.5, 1e-2, 1.0))
"""Length, noise and share of who knows nothing, as logarithms; so are the next three."""
LEAST, MOST = np.log((0.05, 1e-4, 0.02)), np.log((100.0, 0.3, 20.0))
STEP = np.array((0.5, 0.7, 0.5))
DOUBT = np.array((2.5, np.inf, 2.5))
"""How far they may well be from the usual ones: features that do not matter at all are common."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """Features of configurations, each column as the few values that it has and where they are."""

    levels: tuple[Floats, ...]
    places: tuple[NDArray[np.intp], ...]

    @staticmethod
    def of(features: Floats) -> Columns:
        """Return the columns of an array, shape (configurations, features)."""
        found = [np.unique(column, return_inverse=True) for column in features.T]
        return Columns(tuple(each[0] for each in found), tuple(each[1] for each in found))


@dataclass(frozen=True)
class Kernel:
    """A product of 1 + `share` times a Matern 5/2 for each feature, and noise.

    Attributes
    ----------
    share
        Small: what features do adds up. Large: each matters only together with all others.
    """

    lengths: Floats
    noise: float
    share: float

    def __call__(self, a: Floats, b: Columns) -> Floats:
        """Return the covariance of each of `a` with each of `b`, for a variance of 1."""
        result: Floats | None = None
        for column, length, levels, places in zip(
            a.T, self.lengths, b.levels, b.places, strict=True
        ):
            table = _alike(np.abs(column[:, None] - levels) / length, self.share)
            factor = table[:, places]
            result = factor if result is None else np.multiply(result, factor, out=result)
        assert result is not None, "there is one feature at least"
        return result

    def inverse_factor(self, x: Floats) -> Floats:
        """Return the inverse of the lower factor of the covariance of `x`, noise included."""
        factor = np.linalg.cholesky(self(x, Columns.of(x)) + self.noise * np.eye(len(x)))
        inverse: Floats = np.linalg.solve(factor, np.eye(len(x)))
        return inverse


def fitted(x: Floats, y: Floats, known: Kernel | None, rng: np.random.Generator) -> Kernel:
    """Return a kernel that explains costs better than one that is known, if some random changes of it find one.

    Parameters
    ----------
    x
        Features, shape (results, features).
    y
        Their costs, standardised.
    """
    results, features = x.shape
    pairs = _Pairs(x)
    which = pairs.which
    best = USUAL[which] if known is None else np.log((*known.lengths, known.noise, known.share))
    loss = pairs.loss(best, y)
    trials = min(TRIALS, max(1, PATIENCE // results))
    steps = rng.normal(0, STEP[which], (trials, len(which)))
    steps[:, :features] *= rng.random((trials, features)) < 0.5
    for step in steps:
        trial = np.clip(best + step, LEAST[which], MOST[which])
        trial_loss = pairs.loss(trial, y)
        if trial_loss < loss:
            best, loss = trial, trial_loss
    lengths, (noise, share) = np.exp(best[:-2]), np.exp(best[-2:])
    return Kernel(lengths, float(noise), float(share))


class _Pairs:
    """The distances between all results in each feature, of which there are few: a fit looks at them many times."""

    def __init__(self, x: Floats) -> None:
        self.which = np.array([0] * x.shape[1] + [1, 2])
        """Whether a parameter is a length, the noise or the share."""
        self._rows, self._columns = np.tril_indices(len(x), -1)
        self._covariance = np.eye(len(x))
        found = [
            np.unique(np.abs(each[self._rows] - each[self._columns]), return_inverse=True)
            for each in x.T
        ]
        sizes = [len(distances) for distances, _ in found]
        self._distances = np.concatenate([distances for distances, _ in found])
        self._features = np.repeat(np.arange(len(found)), sizes)
        starts = np.cumsum([0, *sizes[:-1]])
        self._places = np.stack(
            [places + at for (_, places), at in zip(found, starts, strict=True)]
        )

    def loss(self, parameters: Floats, y: Floats) -> float:
        """Return the negative log likelihood, the variance maximised out, with a prior.

        Parameters
        ----------
        parameters
            Logarithms of lengths, noise and share.
        """
        lengths, (noise, share) = np.exp(parameters[:-2]), np.exp(parameters[-2:])
        table = _alike(self._distances / lengths[self._features], share)
        covariance = self._covariance
        covariance[self._rows, self._columns] = table[self._places].prod(axis=0)
        np.fill_diagonal(covariance, 1 + noise)
        try:
            factor = np.linalg.cholesky(covariance)  # which reads what is below the diagonal
        except np.linalg.LinAlgError:
            return math.inf
        white = np.linalg.solve(factor, y)
        variance = max(float(white @ white) / len(y), 1e-12)
        odd = (parameters - USUAL[self.which]) / DOUBT[self.which]
        spread = float(np.log(np.diag(factor)).sum())
        return 0.5 * len(y) * math.log(variance) + spread + 0.5 * float(odd @ odd)


def _alike(distances: Floats, share: float) -> Floats:
    """Return the factor of one feature, 1 at distance 0."""
    scaled = distances * math.sqrt(5)
    matern = (1 + scaled + scaled * scaled / 3) * np.exp(-scaled)
    result: Floats = (1 + share * matern) / (1 + share)
    return result
