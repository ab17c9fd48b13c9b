"""How fast a client gets a device: until it holds a handle to it, and sessions a second.

Figures: ``acquire`` (ms), ``ask_floor`` (ms: a call that a gRPC server in Python answers at once, of which an acquire
needs one), ``sessions`` (1/s), ``first_result`` (ms from asking for a device to what a function on it gave, with a
pause between two), ``sessions_used`` (1/s: each loads and calls something, and so uses up a sandbox, which ``sessions``
does not). Peer: TVM's tracker, its request until the first function handle.
"""

from __future__ import annotations

import time

import numpy as np
from support import floor, tvm_peer
from support.figures import emit, median_s

import farm
from farm import te
from farm.testing import EmbeddedFarm
from farm.testing.agents import AgentPlan

SAMPLES = 40
CYCLES = 40


def ours(client: farm.Client) -> tuple[float, list[float], float]:
    """Return the median time to a handle, all times, and sessions a second."""
    times = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        session = client.acquire("kind=cpu")
        times.append(time.perf_counter() - began)
        session.close()
        time.sleep(0.05)  # the device is cleaned meanwhile, as between two users
    times.sort()
    began = time.perf_counter()
    for _ in range(CYCLES):
        client.acquire("kind=cpu").close()
    return times[len(times) // 2], times, CYCLES / (time.perf_counter() - began)


def used(client: farm.Client) -> tuple[list[float], float]:
    """Return the time to each first result of sessions with a pause between them, and sessions a second without."""
    x = te.placeholder((8,), "int32", name="x")
    double = te.function("double", [x, te.compute((8,), lambda i: x[i] * 2, name="y")])
    artifact, values = farm.build({"llvm": [double]}), np.arange(8, dtype=np.int32)

    def one() -> float:
        began = time.perf_counter()
        with client.acquire("kind=cpu") as session:
            _, result = session.load_and_call(artifact, "double", values)
            took_s = time.perf_counter() - began
            assert (result == 2 * values).all()
        return took_s

    times = []
    for _ in range(SAMPLES):
        times.append(one())
        time.sleep(0.3)  # the next sandbox is made meanwhile
    began = time.perf_counter()
    for _ in range(CYCLES):
        one()
    return times, CYCLES / (time.perf_counter() - began)


def theirs(connection) -> tuple[float | None, float | None]:
    """Return the same of the peer."""
    if connection is None:
        return None, None

    def one():
        session = connection.request("cpu", session_timeout=60)
        session.get_function("testing.echo")
        time.sleep(0.05)
        return session

    median, _ = median_s(one, 20)
    began = time.perf_counter()
    for _ in range(30):
        connection.request("cpu", session_timeout=60)
    return median - 0.05, 30 / (time.perf_counter() - began)


def main() -> None:
    """Measure both in one run."""
    plan = AgentPlan("bench", ("llvm/x86_64",), ("cpu",))
    with EmbeddedFarm("processes", plans=(plan,)) as running, tvm_peer.tracker() as connection:
        with farm.connect(running.address) as client:
            median, times, rate = ours(client)
            with floor.relayed() as (_, alone):
                ask_s, ask_times = median_s(alone, 200, warmup=50)
            first_times, used_rate = used(client)
        peer_median, peer_rate = theirs(connection)
    peer = tvm_peer.NAME if connection is not None else None
    emit(
        "acquire",
        median * 1e3,
        "ms",
        goal="<= 5",
        samples=SAMPLES,
        lower_is_better=True,
        peer=peer,
        peer_value=None if peer_median is None else peer_median * 1e3,
        spread=times,
    )
    emit(
        "ask_floor",
        ask_s * 1e3,
        "ms",
        goal="none",
        samples=len(ask_times),
        lower_is_better=True,
        spread=ask_times,
    )
    emit(
        "first_result",
        sorted(first_times)[SAMPLES // 2] * 1e3,
        "ms",
        goal="none",
        samples=SAMPLES,
        lower_is_better=True,
        spread=first_times,
    )
    emit(
        "sessions",
        rate,
        "1/s",
        goal=">= 100",
        samples=CYCLES,
        lower_is_better=False,
        peer=peer,
        peer_value=peer_rate,
    )
    emit(
        "sessions_used",
        used_rate,
        "1/s",
        goal="none",
        samples=CYCLES,
        lower_is_better=False,
    )


if __name__ == "__main__":
    main()
