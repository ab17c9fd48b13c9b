"""Devices whose times are a formula: what a tuner does with results shows without any farm."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from farm.client.measuring import Candidate, Measured
from farm.errors import InfrastructureError, KernelFailed
from farm.ir import Function
from farm.measuring import ComparedPair, Comparison, Grade, Measurement, Samples, Status, Verdict
from farm.tune.measurer import Place, Subject

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"
Formula = Callable[[Function], float | Status]


class Landscape:
    """Measures by a formula of the candidate's function; results of `devices` come interleaved, out of order.

    A status instead of a number is how the candidate ends.
    """

    def __init__(
        self,
        formula: Formula,
        *,
        devices: int = 1,
        target: str = X86,
        fails_after: int | None = None,
        host: str = "host-1",
    ) -> None:
        self.formula, self.count, self.target, self.host = formula, devices, target, host
        self.measured: Counter[str] = Counter()
        self.compared: list[list[str]] = []
        self.fails_after = fails_after
        self.most_in_flight = 0
        self.incumbents: list[float | None] = []

    def places(self) -> list[Place]:
        return [
            Place(
                f"device-{n}", (self.target,), self.host, "native", {"cpu": "fast", "core": str(n)}
            )
            for n in range(self.count)
        ]

    def measure(
        self,
        subject: Subject,
        candidates: Iterable[Candidate | None],
        incumbent: float | None,
    ) -> Iterator[Measured]:
        del subject
        self.incumbents.append(incumbent)
        source, flying = iter(candidates), deque[tuple[Candidate, str]]()
        devices = itertools.cycle(place.device_id for place in self.places())
        open_ = True
        while True:
            while open_ and len(flying) < 2 * self.count:
                try:
                    candidate = next(source)
                except StopIteration:
                    open_ = False
                    break
                if candidate is None:
                    break
                flying.append((candidate, next(devices)))
            self.most_in_flight = max(self.most_in_flight, len(flying))
            if not flying:
                return
            if sum(self.measured.values()) % 2:
                flying.rotate(1)  # the last that came is the first that ends
            yield self._one(*flying.popleft())

    def _one(self, candidate: Candidate, device: str) -> Measured:
        if self.fails_after is not None and sum(self.measured.values()) >= self.fails_after:
            raise InfrastructureError("measure: the farm has gone away; look at it")
        assert isinstance(candidate.what, Function)
        self.measured[str(candidate.what)] += 1
        found = self.formula(candidate.what)
        if isinstance(found, Status):
            error = KernelFailed(
                f"kernel: {found.value} at 0x7f00{len(self.measured):04x}; look at it"
            )
            return Measured(candidate, found, error, None, device)
        return Measured(
            candidate, Status.OK, None, measurement(found, self.host), device, {"device": 0.5}
        )

    def compare(self, subject: Subject, functions: Sequence[Function]) -> Comparison:
        del subject
        self.compared.append([str(each) for each in functions])
        values = [self.formula(each) for each in functions]
        numbers = [each for each in values if not isinstance(each, Status)]
        assert len(numbers) == len(values)
        pairs = []
        for value in numbers[1:]:
            ratio = value / numbers[0]
            verdict = (
                Verdict.FASTER if ratio < 0.98 else Verdict.SLOWER if ratio > 1.02 else Verdict.SAME
            )
            pairs.append(ComparedPair(verdict, ratio, ratio * 0.995, ratio * 1.005, 20, 20))
        return Comparison(tuple(measurement(each, self.host) for each in numbers), tuple(pairs), 20)


def measurement(value: float, host: str, grade: Grade = Grade.A) -> Measurement:
    """Return a measurement without noise."""
    from farm.measuring.statistics import statistics_of

    samples = Samples(calls=1, wall_ns=(int(value * 1000),) * 5, cpu_ns=(int(value * 1000),) * 5)
    return Measurement(
        Status.OK,
        samples=samples,
        statistics=statistics_of(samples, "cpu_ns"),
        timing_class="native",
        grade=grade,
        checked=True,
        fingerprint={"cpu": "fast"},
        host=host,
    )
