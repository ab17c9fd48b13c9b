"""Remote calls: one at a time, and many in one message.

Figures: ``call_one`` (us), ``call_floor`` (us: a message of the same size on the same way, over a relay to a peer and
back, for which nothing is done: what gRPC alone takes here), ``calls_batched`` (1/s). Peer: TVM's remote calls, which
have no batches.
"""

from __future__ import annotations

import numpy as np
from support import floor, tvm_peer
from support.figures import emit, median_s

import farm
from farm import te
from farm.testing import EmbeddedFarm
from farm.testing.agents import AgentPlan

CALLS = 1000
BATCH, BATCHES = 5000, 20


def function():
    """Return the smallest useful kernel: it doubles 16 integers."""
    x = te.placeholder((16,), "int32", name="x")
    return te.function("double", [x, te.compute((16,), lambda i: x[i] * 2, name="y")])


def theirs(connection) -> tuple[float | None, float | None]:
    """Return the peer's median call in seconds, and calls a second."""
    if connection is None:
        return None, None
    echo = connection.request("cpu", session_timeout=60).get_function("testing.echo")
    median, times = median_s(lambda: echo(1), CALLS, warmup=50)
    return median, len(times) / sum(times)


def main() -> None:
    """Measure both in one run."""
    plan = AgentPlan("bench", ("llvm/x86_64",), ("cpu",))
    x = np.arange(16, dtype=np.int32)
    with EmbeddedFarm("processes", plans=(plan,)) as running, tvm_peer.tracker() as connection:
        with farm.connect(running.address) as client:
            artifact = client.build({"llvm": [function()]})
            with client.acquire("kind=cpu") as session:
                module = session.load(artifact)
                double = module["double"]
                median, times = median_s(lambda: double(x), CALLS, warmup=50)
                with floor.relayed() as (over, _):
                    floor_s, floor_times = median_s(over, CALLS, warmup=50)
                calls = [("double", (x,))] * BATCH
                batch_s, batches = median_s(lambda: module.batch(calls), BATCHES)
                rate = BATCH / batch_s
                assert (module.batch(calls)[-1] == x * 2).all()
        peer_median, peer_rate = theirs(connection)
    peer = tvm_peer.NAME if connection is not None else None
    emit(
        "call_one",
        median * 1e6,
        "us",
        goal="<= 400",
        samples=CALLS,
        lower_is_better=True,
        peer=peer,
        peer_value=None if peer_median is None else peer_median * 1e6,
        spread=times,
    )
    emit(
        "call_floor",
        floor_s * 1e6,
        "us",
        goal="none",
        samples=CALLS,
        lower_is_better=True,
        spread=floor_times,
    )
    emit(
        "calls_batched",
        rate,
        "1/s",
        goal=">= 100000",
        samples=BATCHES,
        lower_is_better=False,
        peer=peer,
        peer_value=peer_rate,
        spread=[BATCH / seconds for seconds in batches],
    )


if __name__ == "__main__":
    main()
