"""Measures and comparisons of an agent over real gRPC: each candidate ends under its right status."""

from __future__ import annotations

import candidates
import pytest

from farm.api.v1 import measure_pb2
from farm.client.measuring import reference_artifact
from farm.core.digest import digest_of
from farm.core.wire import digest_to_proto
from farm.measuring import Options, Status, Verdict
from farm.measuring.wire import (
    comparison_from_proto,
    measurement_from_proto,
    options_to_proto,
)
from farm.target import Target

OPTIONS = Options(samples=3, sample_s=0.001, warm_up_s=0.05, limit_s=200.0)
STATUSES = {
    "half": Status.WRONG,
    "zeros": Status.WRONG,
    "row": Status.WRONG,
    "last": Status.WRONG,
    "before": Status.WRONG,
    "behind": Status.WRONG,
    "input": Status.WRONG,
    "once": Status.WRONG,
    "lazy": Status.FORGED,
    "seldom": Status.WRONG,
    "crash": Status.CRASH,
    "slow": Status.SLOW,
    "slower": Status.SLOW,
}


def subject(artifact, symbol, name=""):
    data = artifact.to_bytes()
    ref = measure_pb2.ArtifactRef(digest=digest_to_proto(digest_of(data)), inline=data)
    return measure_pb2.Subject(artifact=ref, symbol=symbol, name=name or symbol)


def made(name):
    body = candidates.timer_patch() if name == "timer" else candidates.BODIES[name]
    return subject(candidates.artifact(name, body), name)


@pytest.fixture(scope="module")
def workload():
    reference = reference_artifact(candidates.twice(), [Target.parse("llvm")])
    return measure_pb2.Workload(seed=7, reference=subject(reference, "twice", "reference"))


async def measured(client, name, workload, options=OPTIONS, **more):
    await client.send(
        measure=measure_pb2.MeasureRequest(
            subject=made(name), workload=workload, options=options_to_proto(options), **more
        )
    )
    reply = await client.receive()
    assert reply.WhichOneof("reply") == "measured", reply.error
    return measurement_from_proto(reply.measured)


def test_candidates_end_under_their_right_status_and_the_next_one_is_measured(run_farm, workload):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        first = await measured(client, "right", workload)
        assert (first.status, first.checked, first.timing_class) == (Status.OK, True, "native")
        assert (first.unit, first.clock, first.statistics.n) == ("ns", "cpu_ns", 3)
        assert 0 < first.value < 1e6
        assert len(first.samples.wall_ns) == len(first.samples.cpu_ns) == 3
        assert first.samples.calls > 1  # a call takes microseconds, a sample lasts a millisecond
        assert first.fingerprint["device_kind"] == "native"
        assert first.host
        found = {}
        for name in STATUSES:
            one = await measured(client, name, workload)
            assert one.value is None, name
            assert one.error.message
            found[name] = one.status
        assert found == STATUSES
        again = await measured(client, "right", workload)
        assert (again.status, again.host) == (Status.OK, first.host)
        unraced = await measured(client, "slow", workload, incumbent=first.value, unraced=True)
        assert (unraced.status, unraced.value > 5 * first.value) == (Status.OK, True), unraced

    run_farm(story, canary_every_s=0)


def test_candidate_that_hangs_or_changes_the_clock_is_found_out(run_farm, workload):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        short = Options(samples=3, sample_s=0.001, warm_up_s=0.05, limit_s=1.0)
        assert (await measured(client, "hang", workload, short)).status is Status.TIMEOUT
        forged = await measured(client, "timer", workload)
        assert (forged.status, forged.value) == (Status.FORGED, None), forged
        assert "clock" in forged.error.message

    run_farm(story, canary_every_s=0)


def test_comparison_says_which_is_slower_and_which_did_not_run(run_farm, workload):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        options = Options(samples=3, sample_s=0.001, warm_up_s=0.02, budget_s=20.0, limit_s=200.0)
        names = ("right", "slow", "half", "right")
        await client.send(
            compare=measure_pb2.CompareRequest(
                subjects=[made(name) for name in names],
                workload=workload,
                options=options_to_proto(options),
                min_rounds=10,
                max_rounds=20,
                threshold=0.4,
            )
        )
        reply = await client.receive()
        assert reply.WhichOneof("reply") == "compared", reply.error
        found = comparison_from_proto(reply.compared)
        statuses = [it.status for it in found.measurements]
        assert statuses == [Status.OK, Status.OK, Status.WRONG, Status.OK]
        slow, half, same = found.pairs
        assert (slow.verdict, half.verdict) == (Verdict.SLOWER, Verdict.NONE)
        assert slow.low > 100
        assert same.verdict is not Verdict.NONE
        assert len(found.measurements[0].samples.wall_ns) == found.rounds >= 10

    run_farm(story, canary_every_s=0)


def test_requests_out_of_range_are_refused_and_the_session_goes_on(run_farm, workload):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        right = made("right")
        odd = measure_pb2.Subject(artifact=right.artifact, symbol="absent")
        wrong = measure_pb2.MeasureRequest(subject=odd, workload=workload)
        await client.send(measure=wrong)
        reply = await client.receive()
        assert measurement_from_proto(reply.measured).status is Status.REFUSED
        for request in (
            {"measure": measure_pb2.MeasureRequest(subject=measure_pb2.Subject(symbol="right"))},
            {
                "measure": measure_pb2.MeasureRequest(
                    subject=right, options=measure_pb2.MeasureOptions(samples=-1)
                )
            },
            {"compare": measure_pb2.CompareRequest(subjects=[right])},
            {"compare": measure_pb2.CompareRequest(subjects=[right, right], threshold=2)},
            {"compare": measure_pb2.CompareRequest(subjects=[right, right], max_rounds=1)},
            {"compare": measure_pb2.CompareRequest(subjects=[right] * 3, max_rounds=10_000)},
            {
                "measure": measure_pb2.MeasureRequest(
                    subject=right, workload=measure_pb2.Workload(tolerance=float("inf"))
                )
            },
        ):
            await client.send(**request)
            assert (await client.receive()).error.code == "INVALID_INPUT", request
        unchecked = await measured(client, "half", measure_pb2.Workload())
        assert (unchecked.status, unchecked.checked) == (Status.OK, False)
        checked = await measured(client, "half", workload)
        assert (checked.status, checked.fingerprint["device_sandbox"]) == (Status.WRONG, "none")

    run_farm(story, canary_every_s=0, sandbox="none")
