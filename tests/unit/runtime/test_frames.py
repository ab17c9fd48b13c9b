"""The runner's protocol as bytes, and what a dead runner's status means."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from farm.artifact import ParamSpec, Signature
from farm.errors import InfrastructureError
from farm.runtime import frames

SIGNATURE = Signature(
    (
        ParamSpec("x", "int16", (2, 2), "input", 32),
        ParamSpec("y", "float64", (), "output"),
        ParamSpec("z", "uint8", (3,), "inout"),
    )
)


def test_call_request_is_laid_out_as_the_runner_reads_it():
    x = np.array([[1, 2], [3, 4]], np.int16)
    z = np.array([7, 8, 9], np.uint8)
    request = b"".join(map(bytes, frames.call_request(5, SIGNATURE, [x.T, z], 6)))
    body = (
        struct.pack("<IIII", 2, 5, 3, 6)
        + struct.pack("<BBBBIQ2q", 0, 16, 1, 2, 32, 8, 2, 2)
        + struct.pack("<4h", 1, 3, 2, 4)
        + struct.pack("<BBBBIQ", 2, 64, 2, 0, 8, 8)
        + struct.pack("<BBBBIQq", 1, 8, 3, 1, 1, 3, 3)
        + bytes([7, 8, 9])
    )
    assert request == struct.pack("<Q", len(body)) + body
    assert len(request) <= frames.request_bytes(SIGNATURE)


def test_reply_length_follows_from_the_request():
    assert frames.reply_bytes(SIGNATURE, 6, 0) == 8 + (8 + 3) + 6 * 8 + 8
    assert frames.reply_bytes(SIGNATURE, 6, 3) == 8


def test_names_are_read_back():
    reply = struct.pack("<II1sI2s", 2, 1, b"f", 2, b"gh")
    assert frames.names_of(reply) == ("f", "gh")


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        struct.pack("<I", 1),
        struct.pack("<III", 1, 9, 0),
        struct.pack("<I", 0) + b"x",
        struct.pack("<II1s", 1, 1, b"\xff"),
        struct.pack("<I", 0xFFFFFFFF),
    ],
)
def test_names_malformed_are_an_infrastructure_error(reply):
    with pytest.raises(InfrastructureError, match="load the artifact again"):
        frames.names_of(reply)
