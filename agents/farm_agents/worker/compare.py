"""Interleaving candidates in one process.

Owns: the order of rounds, and when enough is known. Does not own: samples (`sampling`), checks (`measure`), or what the
samples of several processes say together (`farm_agents.measuring`).

Invariant: in each round every candidate has one sample, in an order that turns round from round to round, so that what
grows or fades away meanwhile falls on all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from farm.api.v1 import measure_pb2
from farm.errors import InvalidInput, KernelFailed
from farm.measuring import Comparison, Measurement, Samples, Status, Verdict
from farm.measuring.statistics import (
    LOOK_CONFIDENCE,
    compare,
    grade_of,
    statistics_of,
)
from farm.measuring.values import DEFAULT_ROUNDS, DEFAULT_THRESHOLD
from farm.measuring.wire import options_from_proto
from farm_agents.worker.measure import timing_class
from farm_agents.worker.observers import observers_of
from farm_agents.worker.race import Judged
from farm_agents.worker.sampling import ClockChanged, Host, Sampler
from farm_agents.worker.subject import POISONS, Phases, Subject, clock_of, open_subject

if TYPE_CHECKING:
    from farm.runtime import Loader
    from farm_agents.worker.blobs import Blobs

LOOK_EVERY, LOOK_PART = 10, 0.1
"""Rounds between two looks at whether enough is known, and as a part of those that were run, if that is more: each look
costs as much as there are samples, and gives noise one more chance to be taken for a difference."""


def interleave(
    request: measure_pb2.CompareRequest,
    loader: Loader,
    blobs: Blobs,
    threads: int,
    begin: Callable[[], None],
) -> Comparison:
    """Sample candidates in turns until their differences are known, or the rounds or the budget end.

    Raises
    ------
    FarmError
        A candidate failed: they were all right alone before, so this is no verdict on one of them.
    """
    options = options_from_proto(request.options)
    phases = Phases()
    subjects = [
        open_subject(it, request.workload, request.context, loader, blobs, options, phases)
        for it in request.subjects
    ]
    for subject in subjects:
        subject.prepared.fill(subject.cases[0][1])
        _look(subject)
    host = Host()
    host.open()
    samplers = [Sampler(it.prepared, options, host, observers_of(it.module)) for it in subjects]
    if timing_class(request.context) == "simulated":
        raise InvalidInput("compare: cycles are the same in each call; measure each once instead")
    clock = clock_of(subjects[0], threads)
    try:
        _settle(samplers, request.context.calls)
        begin()
        rounds = run_rounds(samplers, request, clock, options.budget_s)
    except ClockChanged as changed:
        what = (
            f"compare: {changed}: one of the candidates has changed the clock; measure each alone"
        )
        raise KernelFailed(what) from None
    for subject in subjects:
        _look(subject)
    measurements = tuple(
        _measurement(subject, sampler, clock, request)
        for subject, sampler in zip(subjects, samplers, strict=True)
    )
    return Comparison(measurements, (), rounds=rounds)


def _settle(samplers: Sequence[Sampler], calls: Sequence[int]) -> None:
    """Have each sampler know its calls, and warm it up."""
    for index, sampler in enumerate(samplers):
        if calls:
            sampler.calls = calls[index]
            sampler.warm_up()
        else:
            sampler.warm_up(sampler.calibrate())


def run_rounds(
    samplers: Sequence[Sampler], request: measure_pb2.CompareRequest, clock: str, budget_s: float
) -> int:
    """Sample in turns; return how many rounds there were."""
    least = request.min_rounds or DEFAULT_ROUNDS[0]
    most = max(least, request.max_rounds or DEFAULT_ROUNDS[1])
    threshold = request.threshold or DEFAULT_THRESHOLD
    until, look_at = time.perf_counter() + budget_s, least
    for number in range(1, most + 1):
        for sampler in samplers if number % 2 else reversed(samplers):
            sampler.prepared.poison(POISONS[number % 2])
            sampler.sample()
        if number < least:
            continue
        if time.perf_counter() > until:
            return number
        if number < look_at:
            continue
        if _is_decided([it.samples() for it in samplers], clock, threshold):
            return number
        look_at = number + max(LOOK_EVERY, int(LOOK_PART * number))
    return most


def _is_decided(samples: Sequence[Samples], clock: str, threshold: float) -> bool:
    first, *others = samples
    pairs = (compare(first, other, clock, threshold, LOOK_CONFIDENCE) for other in others)
    return all(pair.verdict is not Verdict.INCONCLUSIVE for pair in pairs)


def _look(subject: Subject) -> None:
    try:
        subject.check()
    except Judged as judged:
        raise judged.error from None


def _measurement(
    subject: Subject, sampler: Sampler, clock: str, request: measure_pb2.CompareRequest
) -> Measurement:
    samples = sampler.samples()
    found = statistics_of(samples, clock)
    options = options_from_proto(request.options)
    blank = Measurement(Status.OK, cache=options.cache, timing_class=timing_class(request.context))
    return replace(
        blank,
        clock=clock,
        samples=samples,
        statistics=found,
        grade=grade_of(found),
        checked=bool(subject.expected),
        target=subject.prepared.function.target,
    )
