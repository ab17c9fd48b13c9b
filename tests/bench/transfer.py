"""Large arrays: 64 MiB to the device's host and back, and the same bytes again.

Figures: ``upload_64mib``, ``download_64mib``, ``upload_again`` (MB/s). Peer: TVM's ``copyfrom`` and ``numpy``.
"""

from __future__ import annotations

import time

import numpy as np
from support import tvm_peer
from support.figures import emit

from farm.client import connect
from farm.client.transfer import Store
from farm.testing import EmbeddedFarm

SIZE_BYTES = 64 << 20
SAMPLES = 5


def ours(address: str) -> tuple[list[float], list[float], list[float]]:
    """Return times in seconds: upload of new bytes, download, upload of the same bytes."""
    rng = np.random.default_rng(0)
    ups, downs, again = [], [], []
    with connect(address) as client:
        store: Store = client._store
        for _ in range(SAMPLES):
            data = rng.bytes(SIZE_BYTES)
            began = time.perf_counter()
            digest = store.put(data)
            ups.append(time.perf_counter() - began)
            began = time.perf_counter()
            back = store.get(digest)
            downs.append(time.perf_counter() - began)
            assert back == data
            began = time.perf_counter()
            store.put(data)
            again.append(time.perf_counter() - began)
    return ups, downs, again


def theirs(connection) -> tuple[float | None, float | None]:
    """Return the peer's median upload and download in seconds."""
    if connection is None:
        return None, None
    import tvm

    session = connection.request("cpu", session_timeout=600)
    device = session.cpu(0)
    source = np.random.default_rng(0).random((SIZE_BYTES // 4,), dtype=np.float32)
    target = tvm.runtime.empty(source.shape, "float32", device)
    ups, downs = [], []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        target.copyfrom(source)
        device.sync()
        ups.append(time.perf_counter() - began)
        began = time.perf_counter()
        back = target.numpy()
        downs.append(time.perf_counter() - began)
    assert np.array_equal(back, source)
    return sorted(ups)[SAMPLES // 2], sorted(downs)[SAMPLES // 2]


def main() -> None:
    """Measure both in one run."""
    with EmbeddedFarm("processes", plans=()) as running, tvm_peer.tracker() as connection:
        ups, downs, again = ours(running.address)
        peer_up, peer_down = theirs(connection)
    peer = tvm_peer.NAME if connection is not None else None
    for name, times, theirs_s in (
        ("upload_64mib", ups, peer_up),
        ("download_64mib", downs, peer_down),
        ("upload_again", again, peer_up),
    ):
        emit(
            name,
            SIZE_BYTES / 1e6 / sorted(times)[SAMPLES // 2],
            "MB/s",
            goal=">= 10x the peer" if name != "upload_again" else "moves nothing",
            samples=SAMPLES,
            lower_is_better=False,
            peer=peer,
            peer_value=None if theirs_s is None else SIZE_BYTES / 1e6 / theirs_s,
        )


if __name__ == "__main__":
    main()
