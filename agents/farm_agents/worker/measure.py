"""Measuring one candidate in a process of its own.

Owns: the order of things: load, inputs, numbers, warming up, samples, numbers again; and what a failure is called. Does
not own: each of them (`inputs`, `numerics`, `race`, `sampling`), limits on wall time and crashes (the agent).

Invariant: time counts only if numbers were right before it and after it, and if a call alone does what calls in a row
did.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from farm.api.v1 import measure_pb2
from farm.artifact.artifact import Artifact
from farm.artifact.signature import ParamSpec, Signature
from farm.core.digest import Digest
from farm.core.elements import numpy_dtype
from farm.core.wire import digest_from_proto, tensor_from_proto
from farm.errors import FarmError, InfrastructureError, InvalidInput, KernelFailed, TimeLimit
from farm.measuring import Measurement, Options, Samples, Status
from farm.measuring.statistics import grade_of, statistics_of
from farm.measuring.wire import options_from_proto, timing_class_word
from farm.runtime.prepared import GuardedFunction
from farm_agents.worker import numerics
from farm_agents.worker.inputs import GENERATED, Case, generate
from farm_agents.worker.observers import observers_of
from farm_agents.worker.race import (
    LOST_FACTOR,
    RACED_FACTOR,
    RACED_SAMPLES,
    Judged,
    Race,
    is_telling,
)
from farm_agents.worker.sampling import ClockChanged, Host, Sampler, sets_of

if TYPE_CHECKING:
    from farm.runtime import LoadedModule, Loader
    from farm.runtime.prepared import Prepared

Array = npt.NDArray[Any]
ReadBlob = Callable[[Digest], bytes]

POISONS = (0xFF, 0xA5)
"""Fill outputs before calls, by turns; all ones are no number in any type of float."""
CYCLE_CALLS = 2
"""Of what counts cycles, which are the same in each call; the last one that was checked is among them."""
CLOCK_SLACK_NS = 1_000_000
ALONE_TRIES, ALONE_LOOKS = 5, 2
ALONE_FACTOR, ALONE_SLACK_NS = 20.0, 20_000
"""How much longer a call may take that finds garbage in its outputs; what is shorter cannot be told from noise."""
_ENTROPY_BYTES = 8


@dataclass(slots=True)
class Phases:
    """Where the time of a measure goes."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add the time of the context to a phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


@dataclass(slots=True)
class Subject:
    """A function of an artifact that is ready to be measured."""

    name: str
    module: LoadedModule
    prepared: Prepared
    cases: Sequence[tuple[Case, list[Array]]]
    expected: Sequence[Sequence[Array]]
    tolerance: float

    @property
    def is_inside(self) -> bool:
        """Whether its code runs in this process."""
        return isinstance(self.prepared, GuardedFunction)

    def check_all(self, race: Race, sampler: Sampler, clock: str) -> list[float]:
        """Call it once on each case of inputs, the first one last, and look at all that it did.

        Returns
        -------
        list
            What each call took by a clock; the last one stays a sample.
        """
        took: list[float] = []
        for index in reversed(range(len(self.cases))):
            sampler.restart()
            self.prepared.fill(self.cases[index][1])
            self.prepared.poison(POISONS[index % 2])
            sampler.sample(race.timer)
            self.look(index)
            took.append(sampler.last(clock) if took else self._first(sampler, clock))
            if clock == "cycles":
                race.check(self.name, took[-1], clock)
        # One alone may have been disturbed.
        if len(took) > 1 and is_telling(min(took), clock, sampler.options):
            race.check(self.name, min(took), clock)
        return took

    def _first(self, sampler: Sampler, clock: str) -> float:
        """Return what the first call of all took; it is known from then on what can be observed."""
        value = 0.0 if clock == "cycles" else sampler.last(clock)
        sampler.observe(observers_of(self.module))
        if clock != "cycles":
            return value
        if clock not in sampler.observers:
            raise Judged(
                Status.REFUSED,
                InvalidInput(
                    f"{self.name}: ran on the host and not on the accelerator, so that no cycles were counted; "
                    "build it for the accelerator"
                ),
            )
        return sampler.observers[clock].read()

    def check(self) -> None:
        """Call it once on what it was filled with last, and look at all that it did."""
        self.prepared.poison(POISONS[0])
        self.prepared.lap(1)
        self.look()

    def look(self, index: int = 0) -> None:
        """Look at what the last call did; raises Judged."""
        case = self.cases[index][0]
        what = self.prepared.damage()
        if not what and self.expected:
            signature = self.prepared.signature
            outputs = self.prepared.outputs()
            what = numerics.wrong(signature, outputs, self.expected[index], self.tolerance)
        if what:
            raise Judged(
                Status.WRONG, KernelFailed(f"{self.name}: {what}, on {case} inputs; correct it")
            )


def measure(
    request: measure_pb2.MeasureRequest,
    loader: Loader,
    read: ReadBlob,
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
        found = _measure(request, loader, read, threads, begin, options, phases, blank)
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
    read: ReadBlob,
    threads: int,
    begin: Callable[[], None],
    options: Options,
    phases: Phases,
    blank: Measurement,
) -> Measurement:
    subject = open_subject(
        request.subject, request.workload, request.context, loader, read, options, phases
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
            _take_samples(subject, sampler, race, phases, clock, took[-1])
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


def open_subject(
    subject: measure_pb2.Subject,
    workload: measure_pb2.Workload,
    context: measure_pb2.WorkerContext,
    loader: Loader,
    read: ReadBlob,
    options: Options,
    phases: Phases,
) -> Subject:
    """Load a candidate and make its inputs; raises what the loader does."""
    with phases("load"):
        module = loader.load(read_artifact(subject.artifact, read))
        signature = module.function(subject.symbol).signature
        size_bytes = sum(spec.size_bytes for spec in signature.params)
        prepared = module.prepare(subject.symbol, sets_of(size_bytes, options.cache))
    with phases("inputs"):
        cases = cases_of(workload, signature, read)
        expected = [
            [tensor_from_proto(it, read, "reference") for it in case.outputs]
            for case in context.expected
        ]
    name = subject.name or subject.symbol
    return Subject(name, module, prepared, cases, expected, workload.tolerance)


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


def expect(
    request: measure_pb2.MeasureRequest, loader: Loader, read: ReadBlob
) -> list[tuple[Array, ...]]:
    """Return what the reference gives for each case of a candidate's inputs."""
    candidate = read_artifact(request.subject.artifact, read).symbols
    signature = candidate.get(request.subject.symbol)
    if signature is None:
        raise InvalidInput(f"{request.subject.symbol}: not in its artifact; name one that is")
    reference = request.workload.reference
    with loader.load(read_artifact(reference.artifact, read)) as module:
        types = [spec.dtype for spec in module.function(reference.symbol).signature.inputs]
        found = []
        for _, arrays in cases_of(request.workload, signature, read):
            if len(types) != len(arrays):
                raise InvalidInput(
                    f"reference: takes {len(types)} arrays, {request.subject.symbol} takes {len(arrays)}; give one "
                    "that computes the same"
                )
            wide = [
                array.astype(numpy_dtype(dtype)) for array, dtype in zip(arrays, types, strict=True)
            ]
            outputs = module.call(reference.symbol, wide).outputs
            found.append(_narrowed(outputs, [spec.dtype for spec in signature.outputs]))
    return found


def _narrowed(outputs: Sequence[Array], dtypes: Sequence[str]) -> tuple[Array, ...]:
    """Return the reference's outputs, as float32 where candidates have no more: half as much for each to read."""
    with np.errstate(over="ignore"):
        return tuple(
            array.astype(np.float32)
            if array.dtype == np.float64 and index < len(dtypes) and dtypes[index] != "float64"
            else array
            for index, array in enumerate(outputs)
        )


def cases_of(
    workload: measure_pb2.Workload, signature: Signature, read: ReadBlob
) -> list[tuple[Case, list[Array]]]:
    """Return the inputs of each case."""
    if workload.inputs:
        given = [
            tensor_from_proto(it, read, f"input {position}")
            for position, it in enumerate(workload.inputs)
        ]
        return [(Case.GIVEN, given)]
    return [(case, generate(signature, workload.seed, case)) for case in GENERATED]


def read_artifact(ref: measure_pb2.ArtifactRef, read: ReadBlob) -> Artifact:
    """Return an artifact that came with a request, or is in the cache."""
    return Artifact.from_bytes(ref.inline or read(digest_from_proto(ref.digest)))


def status_of(error: FarmError) -> Status:
    """Return how a measure ended that raised an error; raises it if it is the farm's."""
    if isinstance(error, InfrastructureError):
        raise error
    if isinstance(error, TimeLimit):
        return Status.TIMEOUT
    return Status.CRASH if isinstance(error, KernelFailed) else Status.REFUSED


def clock_of(subject: Subject, threads: int) -> str:
    """Return which clock tells what a function takes: that of its thread, if it has one and it is here."""
    return "cpu_ns" if subject.is_inside and threads == 1 else "wall_ns"


def timing_class(context: measure_pb2.WorkerContext) -> str:
    """Return the device's timing class."""
    return timing_class_word(context.timing_class)


def _count_cycles(subject: Subject, sampler: Sampler) -> None:
    while sampler.count < CYCLE_CALLS:
        subject.prepared.poison(POISONS[1])
        sampler.sample()


def _take_samples(
    subject: Subject, sampler: Sampler, race: Race, phases: Phases, clock: str, checked: float
) -> None:
    """Warm up, and take samples; the last call that was checked, which took `checked`, is none of them."""
    options = sampler.options
    sampler.restart()
    with phases("warm_up"):
        first = checked
        if not is_telling(checked, clock, options):
            first = sampler.calibrate()
            race.check(subject.name, first, clock)
        race.check(subject.name, sampler.warm_up(first), clock)
    # Which one nobody can know before, and a kernel that is only right when it is looked at is found out.
    looked_at = int.from_bytes(os.urandom(_ENTROPY_BYTES)) % options.samples
    began = time.perf_counter()
    with phases("time"):
        while sampler.count < options.samples:
            subject.prepared.poison(POISONS[sampler.count % 2])
            sampler.sample()
            if sampler.count - 1 == looked_at:
                subject.look()
            if sampler.count < RACED_SAMPLES:
                continue
            if time.perf_counter() - began > options.budget_s:
                break
            if race.incumbent and sampler.count == RACED_SAMPLES:
                values = sampler.samples().per_call(clock)
                if float(np.median(values)) > RACED_FACTOR * race.incumbent:
                    break


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
