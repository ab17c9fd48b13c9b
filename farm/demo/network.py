"""The network of the demo: two dense layers on scikit-learn's handwritten digits.

Owns: training, and the functions of the network. Does not own: quantisation (`quantise`).

Invariant: images that the accuracy is measured on were never seen in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from farm import te
from farm.demo.quantise import LEVELS, DenseLayer, dense_layer
from farm.errors import InvalidInput
from farm.ir import Function

Array = npt.NDArray[Any]

HIDDEN = 32
CLASSES = 10
PIXELS = 64
BRIGHTEST = 16.0  # of a pixel in the data
HELD_OUT = 0.25
SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A trained, quantised network and the images that it never saw.

    Attributes
    ----------
    images
        float32, held-out images x 64 pixels.
    labels
        int64, one for each image.
    functions
        By name; ``network`` calls the others.
    logit_scale
        What one step of the integer logits stands for.
    """

    images: Array
    labels: Array
    layers: tuple[DenseLayer, DenseLayer]
    logit_scale: float
    functions: Mapping[str, Function]

    @property
    def inputs(self) -> tuple[Array, ...]:
        """What ``network`` takes, in order."""
        first, second = self.layers
        return (self.images, *first.arrays, *second.arrays)


def train() -> Network:
    """Train the network and quantise it; the same machine gives the same network each time.

    Raises
    ------
    InvalidInput
        scikit-learn is not installed; the message says how to install it.
    """
    try:
        from sklearn.datasets import load_digits  # an extra, and slow to import
        from sklearn.model_selection import train_test_split
        from sklearn.neural_network import MLPClassifier
    except ImportError:
        raise InvalidInput(
            "demo: scikit-learn is missing; install kernel-farm with the extra [demo]"
        ) from None
    pixels, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels, test_size=HELD_OUT, random_state=SEED, stratify=labels
    )
    model = MLPClassifier((HIDDEN,), random_state=SEED, max_iter=400, alpha=1e-2, tol=1e-3)
    model.fit(train_x / BRIGHTEST, train_y)
    (w1, w2), (b1, b2) = model.coefs_, model.intercepts_
    hidden = np.maximum(train_x / BRIGHTEST @ w1 + b1, 0)
    hidden_scale = float(hidden.max()) / LEVELS
    logit_scale = float(np.abs(hidden @ w2 + b2).max()) / LEVELS
    first = dense_layer(w1, b1, 1 / LEVELS, hidden_scale)
    second = dense_layer(w2, b2, hidden_scale, logit_scale)
    return Network(
        images=np.ascontiguousarray(test_x, np.float32),
        labels=np.asarray(test_y),
        layers=(first, second),
        logit_scale=logit_scale,
        functions=functions(len(test_x), logit_scale),
    )


def functions(batch: int, logit_scale: float) -> dict[str, Function]:
    """Return the functions of the network for a number of images.

    ``quantise`` and ``softmax`` are in float, for CPUs; ``dense1`` and ``dense2`` are in integers, for the accelerator
    as well; ``network`` calls the four.
    """
    layer1 = _dense("dense1", batch, PIXELS, HIDDEN, lowest=0)  # ReLU
    layer2 = _dense("dense2", batch, HIDDEN, CLASSES, lowest=-LEVELS - 1)
    parts = [_quantise(batch), layer1, layer2, _softmax(batch, logit_scale)]
    return {part.name: part for part in (*parts, _network(batch, *parts))}


def _quantise(batch: int) -> Function:
    images = te.placeholder((batch, PIXELS), "float32", name="images")
    steps = te.compute(
        (batch, PIXELS),
        lambda i, j: te.floor(images[i, j] * (LEVELS / BRIGHTEST) + 0.5),
        name="steps",
    )
    pixels = te.compute(
        (batch, PIXELS), lambda i, j: te.clip(steps[i, j], 0, LEVELS).astype("int8"), name="pixels"
    )
    return te.function("quantise", [images, pixels])


def _dense(name: str, batch: int, inputs: int, outputs: int, lowest: int) -> Function:
    x = te.placeholder((batch, inputs), "int8", name="x")
    weight = te.placeholder((inputs, outputs), "int8", name="weight")
    bias = te.placeholder((outputs,), "int32", name="bias")
    multiplier = te.placeholder((outputs,), "int32", name="multiplier")
    shift = te.placeholder((outputs,), "int32", name="shift")
    k = te.reduce_axis(inputs, name="k")
    product = te.compute(
        (batch, outputs),
        lambda i, j: te.sum(x[i, k].astype("int32") * weight[k, j].astype("int32"), k),
        name="product",
    )
    y = te.compute(
        (batch, outputs),
        lambda i, j: te.clip(
            te.requantize(product[i, j] + bias[j], multiplier[j], shift[j]), lowest, LEVELS
        ).astype("int8"),
        name="y",
    )
    return te.function(name, [x, weight, bias, multiplier, shift, y])


def _softmax(batch: int, scale: float) -> Function:
    logits = te.placeholder((batch, CLASSES), "int8", name="logits")
    k = te.reduce_axis(CLASSES, name="k")
    largest = te.compute((batch,), lambda i: te.max(logits[i, k], k), name="largest")
    powers = te.compute(
        (batch, CLASSES),
        lambda i, j: te.exp(
            (logits[i, j].astype("int32") - largest[i].astype("int32")).astype("float32") * scale
        ),
        name="powers",
    )
    n = te.reduce_axis(CLASSES, name="n")
    total = te.compute((batch,), lambda i: te.sum(powers[i, n], n), name="total")
    chances = te.compute((batch, CLASSES), lambda i, j: powers[i, j] / total[i], name="chances")
    return te.function("softmax", [logits, chances])


def _network(batch: int, quantise: Function, *others: Function) -> Function:
    dense1, dense2, softmax = others
    images = te.placeholder((batch, PIXELS), "float32", name="images")
    pixels = te.placeholder((batch, PIXELS), "int8", name="pixels")
    hidden = te.placeholder((batch, HIDDEN), "int8", name="hidden")
    logits = te.placeholder((batch, CLASSES), "int8", name="logits")
    chances = te.placeholder((batch, CLASSES), "float32", name="chances")
    first = _parameters("1", PIXELS, HIDDEN)
    second = _parameters("2", HIDDEN, CLASSES)
    return te.sequence(
        "network",
        inputs=[images, *first, *second],
        outputs=[logits, chances],
        calls=[
            te.call(quantise, images, pixels),
            te.call(dense1, pixels, *first, hidden),
            te.call(dense2, hidden, *second, logits),
            te.call(softmax, logits, chances),
        ],
    )


def _parameters(number: str, inputs: int, outputs: int) -> list[te.Tensor]:
    return [
        te.placeholder((inputs, outputs), "int8", name=f"weight{number}"),
        *(
            te.placeholder((outputs,), "int32", name=f"{name}{number}")
            for name in ("bias", "multiplier", "shift")
        ),
    ]
