"""What a run attempt comes to if the agent's own files fail it."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import pytest
from farm_agents import cache as caches
from farm_agents.cache import BlobCache
from farm_agents.outbox import Outbox
from farm_agents.runs import Runner
from farm_agents.state.messages import RunEnded
from farm_agents.state.run import RunOrder
from farm_agents.worker.blobs import blob_path

from farm.api.v1 import job_pb2
from farm.core.clock import SystemClock
from farm.core.digest import digest_of
from farm.core.wire import digest_to_proto
from farm.errors import InfrastructureError


def test_run_whose_worker_has_no_file_left_fails_by_the_farms_fault_and_ends_no_agent(tmp_path):
    async def fetched(digests):
        pass

    async def refused(artifact):
        raise OSError(24, "Too many open files")

    async def stop():
        pass

    spec = job_pb2.RunSpec(artifact=digest_to_proto(digest_of(b"artifact")), symbol="f")
    order = RunOrder("j.1", "j", "j.1.lease", "d", 1, 1.0, spec.SerializeToString())
    session = SimpleNamespace(log=tmp_path / "output.log", load=refused, stop=stop)
    outbox = Outbox(tmp_path / "outbox")
    outbox.load()
    told = []
    runner = Runner(SimpleNamespace(fetch_all=fetched), outbox, SystemClock(), told.append)
    asyncio.run(runner.run(order, session))
    assert isinstance(told[-1], RunEnded)
    assert told[-1].outcome.code == "INFRASTRUCTURE"
    assert "Too many open files" in told[-1].outcome.message


def test_blob_that_is_trimmed_while_it_is_asked_for_is_fetched_again(tmp_path, monkeypatch):
    digest = digest_of(b"some bytes")
    path = blob_path(tmp_path, digest)
    path.parent.mkdir()
    path.write_bytes(b"some bytes")
    fetched = []

    async def download(stub, digest, path):
        fetched.append(digest)
        path.write_bytes(b"some bytes")

    def trimmed(path):
        path.unlink()
        path.stat()

    monkeypatch.setattr(caches, "download", download)
    monkeypatch.setattr(os, "utime", trimmed)
    assert asyncio.run(BlobCache(tmp_path, None).fetch(digest)) == path
    assert fetched == [digest]
    assert path.exists()


def test_kept_blobs_are_checked_and_count_like_those_that_were_fetched(tmp_path):
    async def story():
        cache = BlobCache(tmp_path / "cache", None, limit_bytes=250)
        digests = []
        for number in range(6):
            source = tmp_path / f"{number}"
            source.write_bytes(bytes([number]) * 100)
            digests.append(digest_of(source.read_bytes()))
            await cache.keep(source, digests[-1])
        with pytest.raises(InfrastructureError, match="something else"):
            await cache.keep(source, digests[0])
        return [cache.has(it) for it in digests]

    assert asyncio.run(story())[-1]
    files = [it for it in (tmp_path / "cache").rglob("*") if it.is_file()]
    assert 100 <= sum(it.stat().st_size for it in files) <= 250
