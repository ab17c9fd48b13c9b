"""A small module: upload, load and first run, as a tuner does it for each candidate.

Figure: ``load_first_run`` (ms). Peer: TVM's upload, ``load_module`` and first call of a shared object.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from support import tvm_peer
from support.figures import emit

import farm
from farm import te
from farm.testing import EmbeddedFarm
from farm.testing.agents import AgentPlan

SAMPLES = 20
SIZE = 1024


def add(constant: int):
    """Return a kernel that no other sample shares."""
    a = te.placeholder((SIZE,), "float32", name="a")
    b = te.placeholder((SIZE,), "float32", name="b")
    c = te.compute((SIZE,), lambda i: a[i] + b[i] * float(constant), name="c")
    return te.function("add", [a, b, c])


def ours(address: str) -> list[float]:
    """Return the time of each sample in seconds."""
    a = np.ones(SIZE, np.float32)
    artifacts = [farm.build({"llvm": [add(number)]}) for number in range(SAMPLES)]
    times = []
    with farm.connect(address) as client, client.acquire("kind=cpu") as session:
        for number, artifact in enumerate(artifacts):
            began = time.perf_counter()
            _, result = session.load_and_call(artifact, "add", a, a)
            times.append(time.perf_counter() - began)
            assert (result == 1 + number).all()
    return times


def theirs(connection) -> list[float] | None:
    """Return the peer's times."""
    if connection is None:
        return None
    import tvm
    from tvm import te as peer_te

    def module(number):
        a = peer_te.placeholder((SIZE,), name="A", dtype="float32")
        b = peer_te.placeholder((SIZE,), name="B", dtype="float32")
        c = peer_te.compute((SIZE,), lambda i: a[i] + b[i] * float(number), name="C")
        made = peer_te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
        return tvm.compile(tvm.IRModule({"main": made}), target="llvm")

    session = connection.request("cpu", session_timeout=600)
    device = session.cpu(0)
    arrays = [tvm.runtime.empty((SIZE,), "float32", device) for _ in range(3)]
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(SAMPLES):
            path = Path(folder) / f"k{number}.so"
            module(number).export_library(str(path))
            began = time.perf_counter()
            session.upload(str(path))
            session.load_module(path.name)["main"](*arrays)
            device.sync()
            times.append(time.perf_counter() - began)
    return times


def main() -> None:
    """Measure both in one run."""
    plan = AgentPlan("bench", (), ("cpu",))
    with EmbeddedFarm("processes", plans=(plan,)) as running, tvm_peer.tracker() as connection:
        times = ours(running.address)
        peer_times = theirs(connection)
    emit(
        "load_first_run",
        sorted(times)[SAMPLES // 2] * 1e3,
        "ms",
        goal="<= 1.8",
        samples=SAMPLES,
        lower_is_better=True,
        peer=tvm_peer.NAME if peer_times else None,
        peer_value=sorted(peer_times)[SAMPLES // 2] * 1e3 if peer_times else None,
        spread=times,
    )


if __name__ == "__main__":
    main()
