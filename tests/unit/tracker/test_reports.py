"""Reports of a control stream: what is kept of former messages never shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from farm_tracker.service.reports import Reports
from farm_tracker.state.model import Health, Use
from hypothesis import given
from hypothesis import strategies as st

from farm.api.v1 import agent_pb2, device_pb2, digest_pb2, job_pb2
from farm.errors import InvalidInput


class Store:
    """A store of blobs that has what it was told to have."""

    def __init__(self):
        self.lacks = False

    def missing(self, wanted):
        return list(wanted) if self.lacks else []

    def has(self, _digest):
        return not self.lacks


def state(**changes):
    message = agent_pb2.AgentState(
        agent_id="a", instance_id="i", version="1", builds=["ea"], hosted_by="process", host="h"
    )
    message.MergeFrom(agent_pb2.AgentState(**changes))
    return message


def device(name="d", *, use=device_pb2.USE_IDLE, epoch=0, kind="cpu"):
    description = device_pb2.DeviceDescription(
        device_id=name, labels={"kind": kind}, timing_class=device_pb2.TIMING_CLASS_NATIVE
    )
    return agent_pb2.DeviceState(
        description=description, use=use, epoch=epoch, health=device_pb2.HEALTH_GOOD
    )


DEVICES = st.builds(
    device,
    st.sampled_from("de"),
    use=st.sampled_from([device_pb2.USE_IDLE, device_pb2.USE_LEASED]),
    epoch=st.integers(0, 2),
    kind=st.sampled_from(["cpu", "ea"]),
)
MESSAGES = st.builds(
    state,
    build_slots=st.integers(0, 1),
    toolchains=st.sampled_from([{}, {"ea": "1"}, {"ea": "2"}]),
    devices=st.lists(DEVICES, max_size=2, unique_by=lambda it: it.description.device_id),
    runs=st.sampled_from(
        [[], [agent_pb2.RunAttempt(attempt_id="r", epoch=1, result=job_pb2.JobResult(target="t"))]]
    ),
)


@given(st.lists(MESSAGES, min_size=1, max_size=8))
def test_reports_of_a_stream_are_those_of_each_message_alone(messages):
    stream = Reports(Store())
    for number, message in enumerate(messages):
        alone = replace(Reports(Store()).take(message), connected=number == 0)
        assert stream.take(message) == alone


def test_report_that_repeats_is_the_same_value():
    stream = Reports(Store())
    stream.take(state(devices=[device()]))
    second = stream.take(state(devices=[device()], sequence=2))
    assert stream.take(state(devices=[device()], sequence=3)) is second
    moved = stream.take(state(devices=[device(use=device_pb2.USE_LEASED, epoch=1)]))
    assert moved.devices[0].description is second.devices[0].description
    assert (moved.devices[0].use, moved.devices[0].health) == (Use.LEASED, Health.GOOD)


def test_result_whose_blob_came_late_counts_when_it_is_told_again():
    blob = digest_pb2.Digest(sha256="0" * 64, size_bytes=8)
    result = job_pb2.JobResult()
    result.outputs.add(dtype="int64", shape=[1]).blob.CopyFrom(blob)
    told = state(runs=[agent_pb2.RunAttempt(attempt_id="r", epoch=1, result=result)])
    store = Store()
    stream = Reports(store)
    store.lacks = True
    assert stream.take(told).runs[0].failure is not None
    store.lacks = False
    assert stream.take(told).runs[0].result is not None


@pytest.mark.parametrize("field", ["use", "health"])
def test_report_of_an_unknown_state_is_refused_with_what_is_known(field):
    message = state(devices=[device()])
    setattr(message.devices[0], field, 77)
    with pytest.raises(InvalidInput, match=rf"unknown {field} \(77\); send one of"):
        Reports(Store()).take(message)
