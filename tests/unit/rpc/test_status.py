"""Errors over the wire, without a wire."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.api.v1 import error_pb2
from farm.core.limits import MAX_DETAIL_BYTES, MAX_DETAILS, MAX_ERROR_BYTES
from farm.errors import FarmError, TrackerUnreachable, all_errors, error_class
from farm.rpc import error_from_proto, error_from_rpc, error_to_proto
from farm.rpc.status import ERROR_KEY, error_metadata, status_code


class FailedCall(grpc.RpcError, grpc.Call):
    """A call that has failed, as gRPC hands it to its caller."""

    def __init__(self, code, details, metadata=()):
        self._facts = (code, details, metadata)

    def code(self):
        return self._facts[0]

    def details(self):
        return self._facts[1]

    def trailing_metadata(self):
        return self._facts[2]

    def initial_metadata(self):
        return ()

    def is_active(self):
        return False

    def time_remaining(self):
        return None

    def cancel(self):
        return False

    def add_callback(self, callback):
        return False


@pytest.mark.parametrize("cls", list(all_errors()), ids=lambda cls: cls.code)
def test_error_of_each_class_returns_as_itself(cls):
    error = cls("subject: wrong (3); fix it", reason="because")
    call = FailedCall(status_code(error), "cut", error_metadata(error))

    returned = error_from_rpc(call)

    assert type(returned) is cls
    assert returned.message == error.message
    assert returned.details == error.details


def test_error_whose_details_have_any_key_returns_whole():
    error = FarmError("a: b; c")
    error.details = {"message": "1", "self": "2", "": "3"}
    assert error_from_proto(error_to_proto(error)).details == error.details


@given(
    st.text(max_size=200), st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=8)
)
def test_error_proto_of_any_text_is_read_back_bounded(message, details):
    error = FarmError(message)
    error.details = details
    returned = error_from_proto(
        error_pb2.Error.FromString(error_to_proto(error).SerializeToString())
    )
    assert returned.message == message.encode(errors="replace").decode()
    assert len(returned.details) <= len(details) + 1


def test_error_over_the_limits_is_cut():
    error = FarmError("é" * MAX_ERROR_BYTES)
    error.details = {f"k{i:03}": "v" * 10_000 for i in range(100)}

    proto = error_to_proto(error)

    assert len(proto.message.encode()) <= MAX_ERROR_BYTES
    assert proto.message.endswith("...")
    assert sorted(proto.details) == [f"k{i:03}" for i in range(MAX_DETAILS)]
    assert {len(value) for value in proto.details.values()} == {MAX_DETAIL_BYTES}


def test_error_with_unknown_code_keeps_it_on_the_way_through():
    proto = error_pb2.Error(code="FROM_THE_FUTURE", message="x: y; z", details={"a": "b"})

    error = error_from_proto(proto)

    assert type(error) is FarmError
    assert error.details == {"a": "b", "code": "FROM_THE_FUTURE"}
    assert error_to_proto(error).code == "FROM_THE_FUTURE"


def test_unavailable_call_becomes_tracker_unreachable_with_address_and_hint():
    error = error_from_rpc(
        FailedCall(grpc.StatusCode.UNAVAILABLE, "connection refused"), "127.0.0.1:7070"
    )
    assert type(error) is TrackerUnreachable
    assert error.message == (
        "tracker: nobody answers at 127.0.0.1:7070 (connection refused); start one with `farm up` "
        "or correct the address"
    )
    assert error.details == {"address": "127.0.0.1:7070"}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "TIME_LIMIT"),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT"),
        (grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
        (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED"),
        (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
        (grpc.StatusCode.DATA_LOSS, "INFRASTRUCTURE"),
        (grpc.StatusCode.ABORTED, "INFRASTRUCTURE"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "INFRASTRUCTURE"),
        (grpc.StatusCode.UNIMPLEMENTED, "FARM_ERROR"),
        (grpc.StatusCode.INTERNAL, "FARM_ERROR"),
        (grpc.StatusCode.UNKNOWN, "FARM_ERROR"),
    ],
)
def test_plain_status_becomes_the_nearest_error(status, code):
    error = error_from_rpc(FailedCall(status, "text"), "host:1")
    assert type(error) is error_class(code)
    assert f"call to host:1: {status.name} (text); " in error.message
    assert error.details == {"grpc": status.name}


def test_damaged_metadata_falls_back_to_the_status():
    call = FailedCall(grpc.StatusCode.NOT_FOUND, "gone", ((ERROR_KEY, b"\xff\xff\xff"),))
    assert error_from_rpc(call).code == "NOT_FOUND"


def test_rpc_error_that_is_no_call_becomes_a_farm_error():
    assert error_from_rpc(grpc.RpcError("odd")).message.startswith("call: no status (odd); ")
