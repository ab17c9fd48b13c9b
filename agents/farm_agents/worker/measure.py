"""Measuring one candidate in a process of its own.

Owns: the order of things: load, inputs, numbers, warming up, samples, numbers again; and what a failure is called. Does
not own: each of them (`inputs`, `numerics`, `race`, `sampling`), limits on wall time and crashes (the agent).

Invariant: time counts only if numbers were right before it and after it, and if a call alone does what calls in a row
did.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from farm.api.v1 import measure_pb2
from farm.artifact.signature import ParamSpec, Signature
from farm.errors import FarmError, InfrastructureError, KernelFailed, TimeLimit
from farm.measuring import Measurement, Options, Samples, Status
from farm.measuring.statistics import WINDOWS, grade_of, settled, statistics_of
from farm.measuring.wire import options_from_proto, timing_class_word
from farm_agents.worker import numerics
from farm_agents.worker.alone import check_alone
from farm_agents.worker.blobs import Blobs
from farm_agents.worker.inputs import GENERATED, generate
from farm_agents.worker.race import (
    LOST_FACTOR,
    RACED_FACTOR,
    RACED_SAMPLES,
    Judged,
    Race,
    is_telling,
)
from farm_agents.worker.sampling import MAX_WINDOWS, ClockChanged, Host, Sampler
from farm_agents.worker.subject import POISONS, Phases, Subject, clock_of, open_subject

if TYPE_CHECKING:
    from farm.runtime import Loader

CYCLE_CALLS = 2
"""Of what counts cycles, which are the same in each call; the last one that was checked is among them."""
CLOCK_SLACK_NS = 1_000_000
_ENTROPY_BYTES = 8


def measure(
    request: measure_pb2.MeasureRequest,
    loader: Loader,
    blobs: Blobs,
    threads: int,
    begin: Callable[[], None],
) -> Measurement:
    """Measure a candidate.

    Parameters
    ----------
    begin
        Called when time begins to be taken.

    Raises
    ------
    InfrastructureError
        The farm failed, not the candidate.
    """
    options = options_from_proto(request.options)
    phases = Phases()
    blank = Measurement(Status.OK, cache=options.cache, timing_class=timing_class(request.context))
    try:
        found = _measure(request, loader, blobs, threads, begin, options, phases, blank)
    except Judged as judged:
        found = replace(blank, status=judged.status, error=judged.error)
    except ClockChanged as changed:
        error = KernelFailed(
            f"{request.subject.name}: {changed}: it has changed the clock; correct it"
        )
        found = replace(blank, status=Status.FORGED, error=error)
    except FarmError as error:
        found = replace(blank, status=status_of(error), error=error)
    return replace(found, phases=phases.seconds)


def _measure(
    request: measure_pb2.MeasureRequest,
    loader: Loader,
    blobs: Blobs,
    threads: int,
    begin: Callable[[], None],
    options: Options,
    phases: Phases,
    blank: Measurement,
) -> Measurement:
    subject = open_subject(
        request.subject, request.workload, request.context, loader, blobs, options, phases
    )
    counts_cycles = blank.timing_class == "simulated"
    has_timer = subject.is_inside and threads == 1 and not counts_cycles
    race = Race(request.incumbent, options.race_factor, has_timer)
    clock, unit = ("cycles",) * 2 if counts_cycles else (clock_of(subject, threads), "ns")
    host = Host()
    host.open()
    sampler = Sampler(subject.prepared, options, host)
    with phases("check"):
        took = subject.check_all(race, sampler, clock)
    begin()
    is_behind = len(took) > 1 and min(took) > LOST_FACTOR * race.incumbent > 0
    is_told = is_behind and not counts_cycles and is_telling(min(took), clock, options)
    if not is_told:
        if counts_cycles:
            with phases("time"):
                _count_cycles(subject, sampler)
        else:
            take_samples(subject, sampler, race, phases, clock, took[-1])
    samples = sampler.samples()
    found = statistics_of(samples, clock)
    if not is_told:
        with phases("recheck"):
            subject.look()  # outputs held garbage before the last sample
            if found is not None and samples.calls > 1 and subject.is_inside:
                check_alone(subject, found.median, clock)
    _check_clocks(subject.name, samples.wall_ns, samples.cpu_ns)
    return replace(
        blank,
        unit=unit,
        clock=clock,
        samples=samples,
        statistics=found,
        grade=grade_of(found),
        checked=bool(subject.expected),
        target=subject.prepared.function.target,
    )


def use_numbers() -> None:
    """Make inputs, compare numbers and conclude from samples once: their first use loads some of what they need."""
    for dtype in ("float32", "int8"):
        params = tuple(ParamSpec(name, dtype, (4, 4), name) for name in ("input", "output"))
        signature = Signature(params)
        for case in GENERATED:
            found = generate(signature, 0, case)
            numerics.wrong(signature, found, found, 0.0)
            numerics.wrong(signature, found, [it + 1 for it in found], 0.0)
    statistics_of(Samples(wall_ns=(1, 2, 3)), "wall_ns")


def status_of(error: FarmError) -> Status:
    """Return how a measure ended that raised an error; raises it if it is the farm's."""
    if isinstance(error, InfrastructureError):
        raise error
    if isinstance(error, TimeLimit):
        return Status.TIMEOUT
    return Status.CRASH if isinstance(error, KernelFailed) else Status.REFUSED


def timing_class(context: measure_pb2.WorkerContext) -> str:
    """Return the device's timing class."""
    return timing_class_word(context.timing_class)


def _count_cycles(subject: Subject, sampler: Sampler) -> None:
    while sampler.count < CYCLE_CALLS:
        subject.prepared.poison(POISONS[1])
        sampler.sample()


def take_samples(
    subject: Subject, sampler: Sampler, race: Race, phases: Phases, clock: str, checked: float
) -> None:
    """Warm up, and take samples; the last call that was checked, which took `checked`, is none of them."""
    options = sampler.options
    sampler.restart()
    is_seen = False
    with phases("warm_up"):
        if is_telling(checked, clock, options):
            last, is_seen = settle(subject, sampler, clock, checked)
        else:
            first = sampler.calibrate()
            race.check(subject.name, first, clock)
            last = sampler.warm_up(first)
        race.check(subject.name, last, clock)
    kept = sampler.count
    looked_at = -1 if is_seen else kept + _random_below(options.samples - kept)
    began = time.perf_counter()
    with phases("time"):
        while sampler.count < options.samples:
            _sample(subject, sampler, is_seen=sampler.count == looked_at)
            if sampler.count < RACED_SAMPLES:
                continue
            if time.perf_counter() - began > options.budget_s:
                break
            if race.incumbent and sampler.count == RACED_SAMPLES:
                values = sampler.samples().per_call(clock)
                if float(np.median(values)) > RACED_FACTOR * race.incumbent:
                    break


def settle(subject: Subject, sampler: Sampler, clock: str, checked: float) -> tuple[float, bool]:
    """Warm up with calls that last as long as samples; those that agree are samples.

    Returns
    -------
    tuple
        What the last call took, and whether one of those that are samples was looked at.
    """
    until = time.perf_counter() + sampler.options.warm_up_s
    windows, seen = [checked], [False]
    while True:
        seen.append(_random_below(sampler.options.samples) == 0)
        _sample(subject, sampler, is_seen=seen[-1])
        windows.append(sampler.last(clock))
        if settled(windows):
            sampler.restart(keep=WINDOWS - 1)
            return windows[-1], any(seen[1 - WINDOWS :])
        if time.perf_counter() >= until or len(windows) == MAX_WINDOWS:
            sampler.restart()
            return windows[-1], False


def _sample(subject: Subject, sampler: Sampler, *, is_seen: bool) -> None:
    """Take a sample on garbage, and perhaps look at what it did."""
    subject.prepared.poison(POISONS[sampler.count % 2])
    sampler.sample()
    if is_seen:
        subject.look()


def _random_below(number: int) -> int:
    """Return a number that no candidate can know before: one that is only right when it is looked at is found out."""
    return int.from_bytes(os.urandom(_ENTROPY_BYTES)) % number


def _check_clocks(name: str, wall_ns: Sequence[int], cpu_ns: Sequence[int]) -> None:
    """Raise Judged if a thread had more CPU time than time has passed, or no time has passed at all."""
    wall, cpu = sum(wall_ns), sum(cpu_ns)
    if min(wall_ns, default=1) <= 0 or cpu > 1.1 * wall + CLOCK_SLACK_NS:
        raise Judged(
            Status.FORGED,
            KernelFailed(
                f"{name}: {cpu / 1e6:.3f} ms of CPU time in {wall / 1e6:.3f} ms: it has changed the clock; correct it"
            ),
        )
