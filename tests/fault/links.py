"""Two network namespaces with one cable between them, which can be cut, cut in one direction, or made slow.

Owns: the namespaces, a TUN device in each, and carrying packets between them in user space. Does not own: what runs in
the namespaces.

Nothing has a name in the system: a namespace is gone with the last process in it, its device with the descriptor here,
so that nothing is left behind whatever happens to the tests. It needs root and ``/dev/net/tun``, and no kernel module
for delays.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import selectors
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path

import pytest

HERE, THERE = "10.77.0.1", "10.77.0.2"
MTU = 1400

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_NETWORK = 0x40000000
_SET_INTERFACE = 0x400454CA
_TUN, _NO_HEADER = 0x0001, 0x1000


def check_can_link():
    """Skip the test where there can be no such link."""
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists() or shutil.which("ip") is None:
        pytest.skip("needs root, /dev/net/tun and iproute2 for network namespaces")
    with contextlib.ExitStack() as stack:
        try:
            side = Side("10.77.1.1")
        except OSError as error:
            pytest.skip(f"needs network namespaces and TUN devices: {error}")
        stack.callback(side.close)


class Side:
    """One namespace. What `run` does happens in a thread inside it, and so do the processes that it starts."""

    def __init__(self, address):
        self.address = address
        self._work = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        try:
            self.fd = self.run(self._open)
        except BaseException:
            self._work.put(None)
            raise

    def run(self, work):
        """Do something inside; return what it returns."""
        done = Future()
        self._work.put((work, done))
        return done.result(60)

    def close(self):
        os.close(self.fd)
        self._work.put(None)
        self._thread.join()

    def _live(self):
        while (item := self._work.get()) is not None:
            work, done = item
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - for who waits
                done.set_exception(error)

    def _open(self):
        if _LIBC.unshare(_NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(fd, _SET_INTERFACE, struct.pack("16sH22x", b"cable", _TUN | _NO_HEADER))
        for command in (
            "link set lo up",
            f"addr add {self.address}/24 dev cable",
            f"link set cable mtu {MTU} up",
        ):
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
            if done.returncode:
                os.close(fd)
                raise OSError(done.returncode, f"ip {command}: {done.stderr.strip()}")
        return fd


class Link:
    """The cable. Attributes may be changed at any time.

    Attributes
    ----------
    delay_s
        How long each packet takes, in either direction.
    cut_out, cut_back
        Whether packets from `here` to `there`, or back, are lost.
    """

    def __init__(self):
        self.here, self.there = Side(HERE), Side(THERE)
        self.delay_s = 0.0
        self.cut_out = self.cut_back = False
        self.lost = 0
        self._ended = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def cut(self, *, out=True, back=True):
        self.cut_out, self.cut_back = out, back

    def mend(self):
        self.cut(out=False, back=False)

    def close(self):
        self._ended = True
        self._thread.join()
        self.here.close()
        self.there.close()

    def _carry(self):
        waiting = deque()  # (when, whereto, packet), in order
        with selectors.DefaultSelector() as selector:
            for side, other in ((self.here, self.there), (self.there, self.here)):
                selector.register(side.fd, selectors.EVENT_READ, (side, other))
            while not self._ended:
                pause_s = 0.05 if not waiting else max(0.0, waiting[0][0] - time.monotonic())
                for key, _ in selector.select(min(pause_s, 0.05)):
                    self._take(*key.data, waiting)
                while waiting and waiting[0][0] <= time.monotonic():
                    _, other, packet = waiting.popleft()
                    with contextlib.suppress(BlockingIOError):
                        os.write(other.fd, packet)

    def _take(self, side, other, waiting):
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                packet = os.read(side.fd, 65536)
                if self.cut_out if side is self.here else self.cut_back:
                    self.lost += 1
                else:
                    waiting.append((time.monotonic() + self.delay_s, other, packet))


class Relay:
    """A port of this machine's loopback whose connections go on from inside a namespace to an address there."""

    def __init__(self, side, target):
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._side = side
        self._open = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self):
        for it in (self._server, *self._open):
            with contextlib.suppress(OSError):
                it.shutdown(socket.SHUT_RDWR)
            it.close()
        for thread in self._threads:
            thread.join()

    def _accept(self):
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self._open.add(near)
            thread = threading.Thread(target=self._join, args=(near,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _join(self, near):
        # A socket belongs to the namespace that it was made in, whoever uses it.
        far = self._side.run(lambda: socket.socket())
        self._open.add(far)
        try:
            far.connect(self._target)
        except OSError:
            near.close()
            far.close()
            return
        back = threading.Thread(target=_copy, args=(far, near), daemon=True)
        back.start()
        _copy(near, far)
        back.join()
        near.close()
        far.close()


def _copy(source, sink):
    """Carry bytes until one end is closed; then the other end hears of it."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
