"""A candidate that is ready to be called: its code, its arrays, and what is right.

Owns: loading it, its cases of inputs, looking at what calls did. Does not own: inputs (`inputs`), comparing
(`numerics`), or how often it is called (`measure`).

Invariant: nothing is called wrong because of a damaged file.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from farm.api.v1 import measure_pb2
from farm.artifact.artifact import Artifact
from farm.artifact.signature import Signature
from farm.core.wire import digest_from_proto, tensor_from_proto
from farm.errors import InvalidInput, KernelFailed
from farm.measuring import Options, Status
from farm.runtime.prepared import GuardedFunction
from farm_agents.worker import numerics
from farm_agents.worker.blobs import Blobs
from farm_agents.worker.inputs import GENERATED, Case, generate
from farm_agents.worker.observers import observers_of
from farm_agents.worker.race import Judged, Race, is_telling
from farm_agents.worker.sampling import Sampler, sets_of

if TYPE_CHECKING:
    from farm.runtime import LoadedModule, Loader
    from farm.runtime.prepared import Prepared

Array = npt.NDArray[Any]

POISONS = (0xFF, 0xA5)
"""Fill outputs before calls, by turns; all ones are no number in any type of float."""


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
    blobs: Blobs

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
        """Look at what the last call did.

        Raises
        ------
        Judged
            It was wrong.
        InfrastructureError
            What it was compared with is damaged.
        """
        case = self.cases[index][0]
        what = self.prepared.damage()
        if not what and self.expected:
            signature = self.prepared.signature
            outputs = self.prepared.outputs()
            what = numerics.wrong(signature, outputs, self.expected[index], self.tolerance)
            if what:
                self.blobs.check_mapped()
        if what:
            raise Judged(
                Status.WRONG, KernelFailed(f"{self.name}: {what}, on {case} inputs; correct it")
            )


def open_subject(
    subject: measure_pb2.Subject,
    workload: measure_pb2.Workload,
    context: measure_pb2.WorkerContext,
    loader: Loader,
    blobs: Blobs,
    options: Options,
    phases: Phases,
) -> Subject:
    """Load a candidate and make its inputs; raises what the loader does."""
    with phases("load"):
        module = loader.load(read_artifact(subject.artifact, blobs))
        signature = module.function(subject.symbol).signature
        size_bytes = sum(spec.size_bytes for spec in signature.params)
        prepared = module.prepare(subject.symbol, sets_of(size_bytes, options.cache))
    with phases("inputs"):
        cases = cases_of(workload, signature, blobs, context.expected)
        expected = [
            [tensor_from_proto(it, blobs.map, "reference") for it in case.outputs]
            for case in context.expected
        ]
    name = subject.name or subject.symbol
    return Subject(name, module, prepared, cases, expected, workload.tolerance, blobs)


def cases_of(
    workload: measure_pb2.Workload,
    signature: Signature,
    blobs: Blobs,
    known: Sequence[measure_pb2.ExpectedCase] = (),
) -> list[tuple[Case, list[Array]]]:
    """Return the inputs of each case.

    Parameters
    ----------
    known
        Cases that some process has made inputs for already.
    """
    if workload.inputs:
        given = [
            tensor_from_proto(it, blobs.read, f"input {position}")
            for position, it in enumerate(workload.inputs)
        ]
        return [(Case.GIVEN, given)]
    if len(known) == len(GENERATED) and all(it.inputs for it in known):
        return [
            (case, [tensor_from_proto(it, blobs.map, "input") for it in one.inputs])
            for case, one in zip(GENERATED, known, strict=True)
        ]
    return [(case, generate(signature, workload.seed, case)) for case in GENERATED]


def read_artifact(ref: measure_pb2.ArtifactRef, blobs: Blobs) -> Artifact:
    """Return an artifact that came with a request, or is in the cache."""
    return Artifact.from_bytes(ref.inline or blobs.read(digest_from_proto(ref.digest)))


def clock_of(subject: Subject, threads: int) -> str:
    """Return which clock tells what a function takes: that of its thread, if it has one and it is here."""
    return "cpu_ns" if subject.is_inside and threads == 1 else "wall_ns"
