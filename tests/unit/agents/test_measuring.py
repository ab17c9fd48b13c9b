"""What an agent makes of comparisons that a candidate has tampered with, and of damaged files of a reference."""

from __future__ import annotations

import asyncio

import candidates
import pytest
from farm_agents.cache import BlobCache
from farm_agents.measuring import _samples_of
from farm_agents.reference import Reference
from farm_agents.worker.blobs import keep_blob

from farm.api.v1 import measure_pb2, session_pb2
from farm.core.wire import digest_to_proto
from farm.errors import KernelCrashed
from farm.measuring import Comparison, Measurement, Samples, Status
from farm.measuring.wire import comparison_to_proto

GOOD = Measurement(Status.OK, timing_class="native", samples=Samples(wall_ns=(1, 2)))


def reply(*measurements):
    compared = comparison_to_proto(Comparison(measurements, ()))
    return session_pb2.SessionReply(seq=1, compared=compared)


def test_samples_of_each_candidate_are_taken_in_order():
    assert _samples_of(reply(GOOD, GOOD), 2) == [GOOD.samples, GOOD.samples]


def test_forged_comparison_is_the_kernels_fault_and_no_defect_of_the_agent():
    senseless = reply(GOOD, GOOD)
    senseless.compared.measurements[1].samples.cpu_ns.append(3)
    unknown = reply(GOOD, GOOD)
    unknown.compared.measurements[0].timing_class = 99
    something_else = session_pb2.SessionReply(seq=1, measured=measure_pb2.Measurement())
    empty = reply(GOOD, Measurement(Status.OK, timing_class="native"))
    for forged in (reply(GOOD), reply(GOOD, GOOD, GOOD), empty, senseless, unknown, something_else):
        with pytest.raises(KernelCrashed, match="forged"):
            _samples_of(forged, 2)


class Counted(Reference):
    """Counts runs, of which each leaves the same array of inputs and of outputs."""

    runs = 0

    async def _run(self, worker, subject, workload):
        self.runs += 1
        case = measure_pb2.ExpectedCase()
        for tensors, content in ((case.inputs, b"inputs"), (case.outputs, b"outputs")):
            tensors.add().blob.CopyFrom(digest_to_proto(keep_blob(self.cache.root, content)))
        return (case,)


@pytest.mark.parametrize("part", ["inputs", "outputs"])
def test_reference_is_run_again_if_an_array_of_it_is_damaged(tmp_path, part):
    data = candidates.artifact("right", candidates.BODIES["right"]).to_bytes()
    subject = measure_pb2.Subject(symbol="right")
    subject.artifact.inline = data
    reference = Counted(BlobCache(tmp_path, None))

    def expected():
        return asyncio.run(reference.expected(None, subject, measure_pb2.Workload()))

    (case,) = expected()
    assert (tuple(expected()), reference.runs) == ((case,), 1)
    reference.forget("some other blob")
    assert (tuple(expected()), reference.runs) == ((case,), 1)
    reference.forget(getattr(case, part)[0].blob.sha256)
    assert (tuple(expected()), reference.runs) == ((case,), 2)
