"""Measuring what a device can do at best.

Owns: running the functions of `roofline` on a device. Does not own: them.
"""

from __future__ import annotations

from contextlib import closing

from farm.client.measuring import Candidate
from farm.ir import Function
from farm.target import Target
from farm.tune.measurer import Measurer, Subject
from farm.tune.roofline import Ceilings, ceiling_functions, main_dtype


def measured_ceilings(measurer: Measurer, function: Function, target: Target) -> Ceilings | None:
    """Return what a device can do of the kind of arithmetic that a function needs; None if that cannot be measured.

    Raises
    ------
    FarmError
        The farm failed.
    """
    rates = []
    for probe, work in ceiling_functions(target, main_dtype(function)):
        found = measurer.measure(
            Subject(probe, target), [Candidate("ceiling", probe, target)], None
        )
        with closing(found) as results:  # type: ignore[type-var]
            value = next(iter(results)).value
        if value is None:
            return None
        rates.append((work.operations / value, work.size_bytes / value))
    (operations, _), (_, moved) = rates
    return Ceilings(operations, moved)
