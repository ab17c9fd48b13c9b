"""TVM's RPC tracker and server as the peer, if ``apache-tvm`` is installed (extra ``[peers]``).

Owns: starting and ending its processes on loopback. Does not own: what is measured.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "tvm rpc"
START_LIMIT_S = 60.0
_PORTS: dict[int, int] = {}


def is_installed() -> bool:
    """Tell whether the peer can be measured."""
    return all(
        importlib.util.find_spec(name) for name in ("tvm", "tornado", "cloudpickle", "psutil")
    )


@contextlib.contextmanager
def tracker() -> Iterator[Any]:
    """Start a tracker with one server for key ``cpu``; yield a connection to it, or None without TVM."""
    if not is_installed():
        yield None
        return
    from tvm import rpc

    port = _free_port()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        where = ["--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
        stack.enter_context(_process("tvm.exec.rpc_tracker", where, Path(folder)))
        connection = _until(lambda: rpc.connect_tracker("127.0.0.1", port))
        _PORTS[id(connection)] = port
        own = _free_port()
        serving = ["--host", "127.0.0.1", "--port", str(own), "--port-end", str(own + 1)]
        serving += ["--tracker", f"127.0.0.1:{port}", "--key", "cpu"]
        stack.enter_context(_process("tvm.exec.rpc_server", serving, Path(folder)))
        _until(lambda: _free_servers(connection))
        yield connection


def port_of(connection: Any) -> int:
    """Return the port of the tracker that a connection is to."""
    return _PORTS[id(connection)]


def _free_servers(connection: Any) -> int:
    queue = connection.summary()["queue_info"].get("cpu", {})
    if not queue.get("free", 0):
        raise OSError("no server yet")
    return int(queue["free"])


@contextlib.contextmanager
def _process(module: str, arguments: list[str], folder: Path) -> Iterator[None]:
    with (folder / f"{module}.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # its own group: servers leave children behind
            child.wait()


def _until(attempt: Any) -> Any:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            return attempt()
        except (OSError, RuntimeError, ValueError, KeyError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
