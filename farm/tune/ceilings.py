"""Measuring what a device can do at best.

Owns: running the functions of `roofline` on a device, and recording what came of it. Does not own: them.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from farm.client.measuring import Candidate
from farm.ir import Function
from farm.target import Target
from farm.tune.measurer import Measurer, Subject
from farm.tune.records.database import Records
from farm.tune.records.record import Key, Outcome, Workload
from farm.tune.roofline import Ceilings, Work, ceiling_functions, main_dtype, work_of
from farm.tune.task import record_of

TEMPLATE = "ceiling 1"


def measured_ceilings(
    measurer: Measurer,
    function: Function,
    key: Key,
    records: Records | None = None,
    *,
    run: str = "",
    wall: float = 0.0,
) -> Ceilings | None:
    """Return what a device can do of the kind of arithmetic that a function needs; None if that cannot be measured.

    What `records` has is not measured again; what is measured is recorded.

    Parameters
    ----------
    key
        Of the function on the device.

    Raises
    ------
    FarmError
        The farm failed.
    """
    known = None if records is None else recorded_ceilings(records, key, function)
    if known is not None:
        return known
    values = []
    target = Target.parse(key.target)
    for probe, work in ceiling_functions(target, main_dtype(function)):
        workload = Workload.of(probe)
        found = measurer.measure(
            Subject(probe, target), [Candidate("ceiling", probe, target)], None
        )
        with closing(found) as results:  # type: ignore[type-var]
            measured = next(iter(results))
        record = replace(
            record_of(replace(key, workload=workload.id), measured),
            template=TEMPLATE,
            run=run,
            wall=wall,
        )
        if records is not None:
            records.add([record], workloads_=[workload])
        values.append((work, record.value))
    return _ceilings(values)


def recorded_ceilings(records: Records, key: Key, function: Function) -> Ceilings | None:
    """Return the ceilings that were measured where a key's values come from; None if there are none."""
    values: list[tuple[Work, float | None]] = []
    for probe, _ in ceiling_functions(Target.parse(key.target), main_dtype(function)):
        workload = Workload.of(probe)
        own = records.under(replace(key, workload=workload.id), TEMPLATE)
        good = [each.value for each in own if each.outcome is Outcome.OK and each.value]
        values.append((work_of(probe), min(good, default=None)))
    return _ceilings(values)


def _ceilings(values: list[tuple[Work, float | None]]) -> Ceilings | None:
    (first, arithmetic), (second, memory) = values
    if arithmetic is None or memory is None:
        return None
    return Ceilings(first.operations / arithmetic, second.size_bytes / memory)
