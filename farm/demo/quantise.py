"""From a trained float network to integers.

Owns: scales, and multipliers with shifts. Does not own: the rescaling itself (`farm.te.requantize`).

Invariant: weights are symmetric, -127 to 127, so that zero is exact.

Notes
-----
Symmetric 8-bit quantisation with a scale for each output channel, as in Jacob et al., "Quantization and Training of
Neural Networks for Efficient Integer-Arithmetic-Only Inference" (2018); the rescaling is TOSA's ``apply_scale_32``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LEVELS = 127  # the largest int8; -128 is left out, so that zero is exact and signs are symmetric


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayer:
    """An integer layer: ``clip(rescale(x @ weight + bias, multiplier, shift))``.

    Attributes
    ----------
    weight
        int8, inputs x outputs.
    bias, multiplier, shift
        int32, one for each output; the rescaling is ``multiplier / 2**shift``.
    """

    weight: Array
    bias: Array
    multiplier: Array
    shift: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The parameters in the order that the functions take them."""
        return (self.weight, self.bias, self.multiplier, self.shift)


def dense_layer(weight: Array, bias: Array, input_scale: float, output_scale: float) -> DenseLayer:
    """Quantise a dense layer.

    Parameters
    ----------
    weight, bias
        float, inputs x outputs and outputs.
    input_scale, output_scale
        What one step of the integer input and output stands for.
    """
    scales = np.maximum(np.abs(weight).max(axis=0), 1e-8) / LEVELS
    factors = [multiplier_and_shift(input_scale * scale / output_scale) for scale in scales]
    return DenseLayer(
        weight=np.rint(weight / scales).astype(np.int8),
        bias=np.rint(bias / (input_scale * scales)).astype(np.int32),
        multiplier=np.array([multiplier for multiplier, _ in factors], np.int32),
        shift=np.array([shift for _, shift in factors], np.int32),
    )


def multiplier_and_shift(factor: float) -> tuple[int, int]:
    """Return m in [2**30, 2**31) and s in [2, 62] with ``m / 2**s`` nearest to `factor`.

    Raises
    ------
    ValueError
        The factor is not positive, or lies outside what the two can express.
    """
    if not factor > 0:
        raise ValueError(f"factor: not positive ({factor})")
    fraction, exponent = math.frexp(factor)  # fraction in [0.5, 1)
    multiplier, shift = round(fraction * (1 << 31)), 31 - exponent
    if multiplier == 1 << 31:
        multiplier, shift = 1 << 30, shift - 1
    if not 2 <= shift <= 62:
        raise ValueError(f"factor: out of range ({factor})")
    return multiplier, shift
