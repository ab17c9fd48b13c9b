"""What a tuner needs of a farm: places to measure, measuring as results come, comparing.

Owns: that interface, and doing it with a farm's batches. Does not own: how batches or devices work (`farm.client`).

Invariant: values are comparable between all places of one measurer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import farm.te as te
from farm.artifact import Artifact
from farm.client.measuring import Candidate, Measured, Workload, reference_artifact
from farm.errors import FarmError, InfrastructureError, InvalidInput, NobodyCanServe
from farm.ir import Function
from farm.measuring import Comparison, Options, Status
from farm.target import Target

if TYPE_CHECKING:
    from farm.client import Client, DeviceInfo

BUILDS_AHEAD = 6
SEARCH_OPTIONS = Options(samples=3, sample_s=0.001, warm_up_s=0.05, budget_s=0.25)
"""Few samples: while searching, many candidates tell more than exact times; the best are compared at the end."""
DECIDE_S = 20.0
PROBE_OPTIONS = Options(samples=3, warm_up_s=0.0, budget_s=0.05)


@dataclass(frozen=True, slots=True)
class Place:
    """A device as a tuner sees it.

    Attributes
    ----------
    targets
        What it runs, best first.
    host
        Equal texts, comparable values.
    fingerprint
        Facts of the device's host.
    threads
        That a parallel loop has.
    """

    device_id: str
    targets: tuple[str, ...]
    host: str
    timing_class: str
    fingerprint: Mapping[str, str | None] = field(default_factory=dict)
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: the function as it was written, whose results are right, and where it goes."""

    function: Function
    target: Target


class Measurer(Protocol):
    """Measures candidates, on however many devices it has."""

    def places(self) -> Sequence[Place]:
        """Return the devices, all of one kind.

        Raises
        ------
        NobodyCanServe
            There is none.
        InvalidInput
            Their values could not be compared.
        """
        ...

    def measure(
        self,
        subject: Subject,
        candidates: Iterable[Candidate | None],
        incumbent: float | None,
    ) -> Iterator[Measured]:
        """Measure candidates as they come; as `farm.client.Client.measure`."""
        ...

    def compare(self, subject: Subject, functions: Sequence[Function]) -> Comparison:
        """Interleave candidates on one device; the first is what the others are compared with."""
        ...


class FarmMeasurer:
    """Measures on a farm's devices.

    Parameters
    ----------
    selector
        Of the devices; all that match are used.
    options
        How to measure while searching.
    decide_s
        How long the samples of one comparison may take, 0.001 to 200 s.
    seed
        Of the inputs.
    """

    def __init__(
        self,
        client: Client,
        selector: str = "",
        *,
        options: Options | None = None,
        decide_s: float = DECIDE_S,
        seed: int = 0,
    ) -> None:
        self._client, self._selector, self._seed = client, selector, seed
        self.options = options or SEARCH_OPTIONS
        self._deciding = replace(
            self.options, samples=3, budget_s=decide_s, limit_s=2 * decide_s + 90.0
        )
        self._places: list[Place] | None = None
        self._references: dict[bytes, Artifact] = {}

    def places(self) -> list[Place]:
        """Return the devices; see `Measurer.places`."""
        if self._places is None:
            devices = [
                each
                for each in self._client.devices(self._selector)
                if each.observed == "online" and each.admin == "enabled"
            ]
            if not devices:
                raise NobodyCanServe(
                    f"tune: no device matches {self._selector!r}; `farm devices` lists those that there are"
                )
            places = [self._probe(each) for each in devices]
            kinds: dict[tuple[str, str], list[str]] = {}
            for place in places:
                kinds.setdefault((place.timing_class, place.host), []).append(place.device_id)
            if len(kinds) > 1:
                groups = "; ".join(", ".join(each) for each in kinds.values())
                raise InvalidInput(
                    f"tune: the devices are of several kinds, whose times cannot be compared ({groups}); "
                    "choose those of one kind with --devices"
                )
            self._places = places
        return self._places

    def measure(
        self,
        subject: Subject,
        candidates: Iterable[Candidate | None],
        incumbent: float | None,
    ) -> Iterator[Measured]:
        """Measure on all devices at once; see `Measurer.measure`."""
        return self._client.measure(
            candidates,
            workload=self._workload(subject),
            selector=self._selector,
            options=self.options,
            builds_ahead=BUILDS_AHEAD + len(self.places()),
            incumbent=incumbent,
        )

    def compare(self, subject: Subject, functions: Sequence[Function]) -> Comparison:
        """Interleave candidates on one of the devices; raises what the farm failed."""
        job = self._client.compare(
            [
                Candidate(str(number), function, subject.target)
                for number, function in enumerate(functions)
            ],
            workload=self._workload(subject),
            selector=self._selector,
            options=self._deciding,
        )
        try:
            job.wait()
        except KeyboardInterrupt:  # nobody will ask for it, and it would keep a device
            with suppress(FarmError):
                job.cancel("its tuning was interrupted")
            raise
        compared = job.result().comparison
        if compared is None:
            raise InfrastructureError(
                f"tune: the comparison of {subject.function.name} has no result; compare again"
            )
        return compared

    def _workload(self, subject: Subject) -> Workload:
        from farm.ir import serialise

        code = serialise(subject.function)
        if code not in self._references:
            hosts = {
                text
                for place in self.places()
                for text in place.targets
                if Target.parse(text).kind == "llvm"
            }
            targets = [Target.parse(text) for text in sorted(hosts)]
            self._references[code] = reference_artifact(subject.function, targets)
        return Workload(reference=self._references[code], seed=self._seed)

    def _probe(self, device: DeviceInfo) -> Place:
        """Measure next to nothing, to learn what the device's values are comparable with."""
        x = te.placeholder((8,), "int32", name="x")
        probe = te.function("probe", [x, te.compute((8,), lambda i: x[i] + 1, name="y")])
        found = self._client.measure(
            [Candidate("probe", probe, device.targets[0])],
            selector=f"device_id={device.device_id}",
            options=PROBE_OPTIONS,
        )
        with closing(found):  # type: ignore[type-var]
            measured = next(iter(found))
        if measured.status is not Status.OK or measured.measurement is None:
            raise NobodyCanServe(
                f"tune: device {device.device_id} measures nothing ({measured.status}: {measured.error}); "
                "leave it out with --devices"
            )
        threads = device.labels.get("threads", "1")
        return Place(
            device_id=device.device_id,
            targets=device.targets,
            host=measured.measurement.host,
            timing_class=measured.measurement.timing_class,
            fingerprint=dict(measured.measurement.fingerprint),
            threads=int(threads) if threads.isdecimal() else 1,
        )
