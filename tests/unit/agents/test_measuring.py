"""What an agent makes of comparisons that a candidate has tampered with."""

from __future__ import annotations

import pytest
from farm_agents.measuring import _samples_of

from farm.api.v1 import measure_pb2, session_pb2
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
