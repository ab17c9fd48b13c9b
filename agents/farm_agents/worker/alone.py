"""Whether a call alone does what calls in a row did.

Owns: telling a function that works only where its outputs hold garbage, or only sometimes. Does not own: samples
(`sampling`), or what is right (`subject`).

Invariant: a function that passes takes, on garbage, no longer than in a row, or as long as the same work with memory.
"""

from __future__ import annotations

import math

import numpy as np

from farm.errors import KernelFailed
from farm.measuring import Status
from farm_agents.worker.race import Judged
from farm_agents.worker.subject import POISONS, Subject

ALONE_TRIES, ALONE_LOOKS = 5, 2
ALONE_FACTOR, ALONE_SLACK_NS = 20.0, 20_000
"""How much longer a call may take that finds garbage in its outputs; what is shorter cannot be told from noise."""


def check_alone(subject: Subject, value: float, clock: str) -> None:
    """Raise Judged if a call that finds garbage in its outputs does not do what those in a row did.

    In a sample only the first call finds garbage. A function that looks whether its outputs are right already, or works
    once in a thousand calls, would seem to take no time.

    Parameters
    ----------
    value
        What a call in a row takes, in ns of the clock.
    """
    prepared = subject.prepared
    prepared.lap(1)
    right = [np.array(it) for it in prepared.outputs()]
    again = anew = math.inf
    for number in range(ALONE_TRIES):
        prepared.poison(POISONS[number % 2])
        for output, content in zip(prepared.outputs(), right, strict=True):
            np.copyto(output, content)  # after the same work with memory as before the other call
        again = min(again, _one_ns(subject, clock))
        prepared.poison(POISONS[number % 2])
        anew = min(anew, _one_ns(subject, clock))
        subject.look()
        if number + 1 >= ALONE_LOOKS and anew - again <= ALONE_FACTOR * value + ALONE_SLACK_NS:
            return
    raise Judged(
        Status.FORGED,
        KernelFailed(
            f"{subject.name}: a call takes {anew / 1e3:.1f} us if its outputs hold garbage and {again / 1e3:.1f} us if "
            "they are right already, so that its time is none of the work; correct it"
        ),
    )


def _one_ns(subject: Subject, clock: str) -> int:
    lap = subject.prepared.lap(1)
    return lap.cpu_ns if clock == "cpu_ns" and lap.cpu_ns is not None else lap.wall_ns
