"""How much a candidate is called: the less, the further it is behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import candidates
import pytest
from farm_agents.worker import measure as worker
from farm_agents.worker.blobs import Blobs
from farm_agents.worker.inputs import Case

from farm.api.v1 import device_pb2, measure_pb2
from farm.core.digest import digest_of
from farm.core.wire import digest_to_proto
from farm.measuring import CacheMode, Options, Status
from farm.measuring.wire import options_to_proto
from farm.runtime.local import local_capabilities
from farm.runtime.native import native_loader
from farm.runtime.prepared import GuardedFunction

SAMPLES = 4


@dataclass
class Counted:
    """A loader whose modules count calls."""

    loader: object
    calls: int = 0
    inputs: list = field(default_factory=list)

    def load(self, artifact):
        module = self.loader.load(artifact)
        prepare = module.prepare

        def counted(*arguments):
            prepared = prepare(*arguments)
            assert isinstance(prepared, GuardedFunction)
            lap = prepared.lap

            def counting(number):
                self.calls += number
                return lap(number)

            prepared.lap = counting
            return prepared

        module.prepare = counted
        return module


@pytest.fixture(scope="module")
def measured():
    """Measure a body: its measurement, and how often it was called."""
    here = local_capabilities()
    loader = native_loader(here.targets, here.provides)

    def run(repeats, incumbent=0.0, **options):
        data = candidates.artifact(
            "right", candidates.loop(0, candidates.COUNT, repeats=str(repeats))
        ).to_bytes()
        ref = measure_pb2.ArtifactRef(digest=digest_to_proto(digest_of(data)), inline=data)
        given = {"samples": SAMPLES, "sample_s": 0.0001, "warm_up_s": 0.01, "race_factor": 1000.0}
        request = measure_pb2.MeasureRequest(
            subject=measure_pb2.Subject(artifact=ref, symbol="right", name="right"),
            options=options_to_proto(Options(**given | options)),
            incumbent=incumbent,
        )
        request.context.timing_class = device_pb2.TIMING_CLASS_NATIVE
        counted = Counted(loader)
        found = worker.measure(request, counted, Blobs(Path("nowhere")), 1, lambda: None)
        assert found.status is Status.OK, found.error
        return found, counted.calls

    return run


LONG = 2_000
"""Turns of a body that lasts some milliseconds."""


def test_candidate_that_is_far_behind_is_called_for_its_numbers_only(measured):
    alone, _ = measured(LONG)
    assert alone.statistics.n == SAMPLES
    behind, calls = measured(LONG, incumbent=alone.value / 10)
    assert (calls, behind.statistics.n) == (len(Case) - 1, 1)
    assert behind.value > alone.value / 10


@pytest.mark.parametrize(
    ("repeats", "options"),
    [(LONG, {"cache": CacheMode.ROTATE}), (1, {"sample_s": 0.01}), (LONG, {})],
    ids=["caches that hold something else", "short", "ahead"],
)
def test_candidate_whose_first_calls_say_little_is_measured_whole(measured, repeats, options):
    alone, _ = measured(repeats, **options)
    ratio = 1000.0 if not options else 0.5
    found, _ = measured(repeats, incumbent=alone.value * ratio, **options)
    assert found.statistics.n >= 3
