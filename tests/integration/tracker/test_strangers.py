"""Whatever strangers send to the port, others are served meanwhile and memory stays flat."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import grpc
import pytest

from farm.api.v1 import device_pb2, device_pb2_grpc
from farm.errors import Cancelled, FarmError, TrackerUnreachable, Unauthenticated
from farm.rpc import Credentials, channel, channels, credentials, error_from_rpc
from farm.rpc.channels import (
    HANDSHAKE_S,
    MAX_MESSAGE_BYTES,
    MAX_REQUEST_METADATA_BYTES,
    MAX_STREAMS,
    channel_options,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = struct.pack(">I", 0)[1:] + bytes([4, 0]) + struct.pack(">I", 0)
HTTP = b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
PATH = "/farm.api.v1.DeviceService/ListDevices"
SERVED_S = 30.0
"""For a call of an honest user: it takes milliseconds, and some seconds on a machine that has much else to do."""
GROWTH_KIB = 24 << 10
"""More than an allocator's slack, far less than what is sent."""


class Tracker:
    """A tracker in a process of its own, whose memory can be seen."""

    def __init__(self, folder, *options):
        command = [sys.executable, "-m", "farm_tracker", "--data-dir", str(folder), *options]
        command += ["--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.address = self.process.stdout.readline().strip()
        self.port = int(self.address.rpartition(":")[2])
        self.tls = "--plaintext" not in options

    def memory_kib(self):
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])

    def descriptors(self):
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def dial(self, *, tls=None):
        """Connect as a stranger, with TLS begun if the tracker speaks it."""
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        if not (self.tls if tls is None else tls):
            return raw
        context = ssl.create_default_context(cadata=credentials.load(self.address).ca.decode())
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(raw)


@pytest.fixture(scope="module", params=["tls", "plaintext"])
def tracker(request, tmp_path_factory):
    options = ["--plaintext"] if request.param == "plaintext" else []
    tracker = Tracker(tmp_path_factory.mktemp("data"), *options)
    try:
        yield tracker
    finally:
        tracker.process.terminate()
        tracker.process.communicate(timeout=60)


class Honest(threading.Thread):
    """A user who calls all the time and notes how long it took."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self.calls = 0
        self.errors = []
        self._address = address
        self._done = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self.join(120)

    def run(self):
        with channel(self._address) as opened:
            devices = device_pb2_grpc.DeviceServiceStub(opened)
            while not self._done.wait(0.02):
                started = time.monotonic()
                try:
                    devices.ListDevices(device_pb2.ListDevicesRequest(), timeout=60)
                except grpc.RpcError as error:
                    self.errors.append(error_from_rpc(error))
                self.longest_s = max(self.longest_s, time.monotonic() - started)
                self.calls += 1


def read_to_end(opened):
    """Read until the other side ends the connection; return whether it did in time."""
    try:
        while opened.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:  # it ended it less politely
        pass
    return True


def send(opened, data):
    with contextlib.suppress(OSError):  # the other side may have had enough
        opened.sendall(data)
        opened.shutdown(socket.SHUT_WR)
    read_to_end(opened)
    opened.close()


def stranger(tracker):
    """Open a channel without a token, on a connection of its own as if from a process of its own.

    In one process, gRPC lets plaintext channels to one address share a connection, and with it its limit of calls.
    """
    ca = credentials.load(tracker.address).ca
    options = [*channel_options(), ("grpc.use_local_subchannel_pool", 1)]
    with mock.patch.object(channels, "channel_options", return_value=options):
        return channel(tracker.address, credentials=Credentials("", ca))


def garbage(tracker):
    """Random bytes, HTTP and broken frames, before and after TLS."""
    noise = random.Random(1)
    for number in range(10):
        send(tracker.dial(tls=False), noise.randbytes(4096))
        send(tracker.dial(tls=False), HTTP)
        send(tracker.dial(), HTTP)
        send(tracker.dial(), PREFACE + noise.randbytes(4096))
        # A frame that says it has 16 MiB, of each type.
        send(
            tracker.dial(),
            PREFACE + SETTINGS + b"\xff\xff\xff" + bytes([number, 0, 0, 0, 0, 1]) + bytes(1 << 16),
        )


def oversized(tracker):
    """Messages and metadata over the limits, without a token."""
    with stranger(tracker) as opened:
        for size in (MAX_MESSAGE_BYTES + 1, MAX_MESSAGE_BYTES // 2):
            with pytest.raises(grpc.RpcError) as caught:
                opened.unary_unary(PATH)(bytes(size), timeout=120)
            assert caught.value.code() in (
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            )
        metadata = [("x", "y" * (2 * MAX_REQUEST_METADATA_BYTES + 1))]
        with pytest.raises(grpc.RpcError) as caught:
            opened.unary_unary(PATH)(b"", timeout=120, metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def many(tracker):
    """Two thousand calls at a time, without a token: those over the limit of a connection are refused by gRPC."""
    with stranger(tracker) as opened:
        calls = [opened.unary_unary(PATH).future(b"", timeout=120) for _ in range(2000)]
        errors = Counter(type(error_from_rpc(call.exception())) for call in calls)
    assert set(errors) <= {Unauthenticated, Cancelled, TrackerUnreachable}
    assert errors[Unauthenticated] > MAX_STREAMS // 2


@pytest.mark.parametrize("attack", [garbage, oversized, many])
def test_strangers_disturb_nobody_and_cost_no_memory(tracker, attack):
    attack(tracker)  # what is allocated once
    before, open_before = tracker.memory_kib(), tracker.descriptors()
    with Honest(tracker.address) as honest:
        rounds = 0
        while rounds < 2 or honest.calls < 10:
            attack(tracker)
            rounds += 1
    assert honest.errors == []
    assert honest.longest_s < SERVED_S
    assert tracker.memory_kib() - before < GROWTH_KIB
    deadline = time.monotonic() + 60
    while tracker.descriptors() > open_before + 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tracker.descriptors() <= open_before + 2


def test_silent_connections_are_closed_and_disturb_nobody(tracker):
    before = tracker.memory_kib()
    silent = [tracker.dial(tls=False) for _ in range(300)]
    with Honest(tracker.address) as honest:
        for opened in silent:
            opened.settimeout(12 * HANDSHAKE_S)
            assert read_to_end(opened), "the tracker never has enough"
            opened.close()
    assert honest.errors == []
    assert honest.longest_s < SERVED_S
    assert tracker.memory_kib() - before < GROWTH_KIB


def test_user_s_oversized_message_is_refused_and_the_next_call_served(tracker):
    with channel(tracker.address) as opened:
        devices = device_pb2_grpc.DeviceServiceStub(opened)
        with pytest.raises(grpc.RpcError) as caught:
            opened.unary_unary(PATH)(bytes(MAX_MESSAGE_BYTES + 1), timeout=120)
        assert isinstance(error_from_rpc(caught.value), FarmError)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert list(devices.ListDevices(device_pb2.ListDevicesRequest(), timeout=60).devices) == []
