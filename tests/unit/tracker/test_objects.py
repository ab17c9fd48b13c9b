"""Objects inside reports: stored before anybody acts on them, or told as what they are."""

from __future__ import annotations

import asyncio

import pytest
from farm_tracker.cas import BlobStore
from farm_tracker.service.objects import Objects

from farm.api.v1 import agent_pb2
from farm.core.digest import digest_of
from farm.core.limits import MAX_INLINE_OBJECT_BYTES
from farm.rpc import digest_to_proto

OBJECT = b"object"


def report(data=OBJECT, named=OBJECT):
    state = agent_pb2.AgentState()
    state.attempts.add(attempt_id="u1.1", running=True)
    built = state.attempts.add(attempt_id="u2.1", seconds=0.5)
    built.module.object.CopyFrom(digest_to_proto(digest_of(named)))
    built.module.data = data
    return state


def taken(blobs, *states):
    async def main():
        objects = Objects(blobs)
        for state in states:
            await objects.take(state)

    asyncio.run(main())
    return states[-1].attempts[1]


def test_object_inside_a_report_is_stored_and_taken_off(tmp_path):
    blobs = BlobStore(tmp_path)
    attempt = taken(blobs, report())
    assert blobs.get(digest_of(OBJECT)) == OBJECT
    expected = report(data=b"").attempts[1]
    assert attempt == expected


def test_report_that_repeats_does_not_store_again(tmp_path, monkeypatch):
    blobs, puts = BlobStore(tmp_path), []
    put = blobs.put
    monkeypatch.setattr(blobs, "put", lambda data: (puts.append(data), put(data))[1])
    assert taken(blobs, report(), report()) == report(data=b"").attempts[1]
    assert puts == [OBJECT]


def test_object_without_room_counts_as_still_being_built_until_there_is_some(tmp_path):
    blobs = BlobStore(tmp_path, limit_bytes=1)
    first = report()
    attempt = taken(blobs, first)
    assert (attempt.WhichOneof("outcome"), attempt.running) == ("running", True)

    async def later():
        objects = Objects(blobs)
        await objects.take(report())
        blobs.limit_bytes = 0
        again = report()
        await objects.take(again)
        return again.attempts[1].WhichOneof("outcome")

    assert asyncio.run(later()) == "module"
    assert blobs.has(digest_of(OBJECT))


@pytest.mark.parametrize(
    "state",
    [report(data=b"another"), report(*[b"o" * (MAX_INLINE_OBJECT_BYTES + 1)] * 2)],
    ids=["other bytes", "too large"],
)
def test_object_that_is_not_what_the_report_says_is_the_agents_fault(tmp_path, state):
    blobs = BlobStore(tmp_path)
    attempt = taken(blobs, state)
    assert attempt.error.code == "INFRASTRUCTURE"
    assert blobs.usage().blobs == 0
