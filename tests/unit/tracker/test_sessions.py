from __future__ import annotations

import asyncio
import contextlib

import pytest
from farm_tracker.sessions import Sessions
from farm_tracker.state.model import Lease

from farm.api.v1 import digest_pb2, measure_pb2, session_pb2, tensor_pb2
from farm.core.ids import AgentId, Epoch, LeaseId
from farm.errors import DeviceBusy, DeviceLost, Fenced, InvalidInput
from farm.target import Selector


def lease(epoch: int = 3) -> Lease:
    return Lease(
        LeaseId("l"), Selector(()), "me", 60.0, 0.0, agent_id=AgentId("a"), epoch=Epoch(epoch)
    )


class Sink:
    def __init__(self):
        self.seen = []

    async def __call__(self, message):
        self.seen.append(message.seq)
        return True


def load(seq: int) -> session_pb2.SessionRequest:
    return session_pb2.SessionRequest(seq=seq, load=session_pb2.LoadRequest())


def reply(seq: int) -> session_pb2.SessionReply:
    return session_pb2.SessionReply(seq=seq, loaded=session_pb2.LoadReply())


def opened() -> tuple[Sessions, object]:
    sessions = Sessions()
    sessions.open(lease())
    return sessions, sessions.find(LeaseId("l"), 3)


def test_session_numbers_start_at_one_for_the_agent_and_are_the_clients_own_on_return():
    async def body():
        _, session = opened()
        to_agent, to_client = Sink(), Sink()
        agent, client = session.serve(to_agent), session.attach(to_client)
        for seq in (2, 3):
            await client.send(load(seq))
        for seq in (1, 2):
            await agent.take(reply(seq))
        assert (to_agent.seen, to_client.seen) == ([1, 2], [2, 3])
        await client.drain()

    asyncio.run(body())


def test_session_drops_replies_that_belong_to_an_earlier_client_or_to_nothing():
    async def body():
        _, session = opened()
        to_agent, first, second = Sink(), Sink(), Sink()
        agent = session.serve(to_agent)
        old = session.attach(first)
        await old.send(load(2))
        old.detach()
        await agent.take(reply(1))
        new = session.attach(second)
        await agent.take(reply(1))
        await new.send(load(2))
        for seq in (1, 2, 3):
            await agent.take(reply(seq))
        assert (to_agent.seen, first.seen, second.seen) == ([1, 2], [], [2])

    asyncio.run(body())


def test_session_request_waits_for_the_agent_and_drain_for_its_reply():
    async def body():
        _, session = opened()
        to_agent, to_client = Sink(), Sink()
        client = session.attach(to_client)
        sending = asyncio.create_task(client.send(load(2)))
        await asyncio.sleep(0)
        assert not sending.done()
        agent = session.serve(to_agent)
        await sending
        draining = asyncio.create_task(client.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        await agent.take(reply(1))
        await draining

    asyncio.run(body())


@pytest.mark.parametrize("seq", [0, 1, 3])
def test_session_refuses_requests_out_of_number(seq):
    async def body():
        _, session = opened()
        session.serve(Sink())
        client = session.attach(Sink())
        with pytest.raises(InvalidInput):
            await client.send(load(seq))

    asyncio.run(body())


def test_session_refuses_to_attach_again_inside_a_stream():
    async def body():
        _, session = opened()
        session.serve(Sink())
        client = session.attach(Sink())
        with pytest.raises(InvalidInput):
            await client.send(
                session_pb2.SessionRequest(seq=2, attach=session_pb2.AttachRequest(lease_id="l"))
            )

    asyncio.run(body())


def test_session_has_one_client_at_a_time():
    async def body():
        _, session = opened()
        first = session.attach(Sink())
        with pytest.raises(DeviceBusy):
            session.attach(Sink())
        first.detach()
        session.attach(Sink()).detach()

    asyncio.run(body())


def test_session_agent_stream_that_broke_fails_the_client_and_numbers_begin_anew():
    async def body():
        _, session = opened()
        agent, client = session.serve(Sink()), session.attach(Sink())
        await client.send(load(2))
        agent.leave()
        assert isinstance(client.failed.result(), DeviceLost)
        client.detach()
        to_agent = Sink()
        session.serve(to_agent)
        await session.attach(Sink()).send(load(2))
        assert to_agent.seen == [1]

    asyncio.run(body())


def test_session_newer_agent_stream_ends_the_older():
    async def body():
        _, session = opened()
        old = session.serve(Sink())
        to_agent = Sink()
        session.serve(to_agent)
        assert isinstance(old.replaced.result(), Fenced)
        old.leave()
        await session.attach(Sink()).send(load(2))
        assert to_agent.seen == [1]

    asyncio.run(body())


def test_session_of_an_ended_lease_or_another_epoch_or_agent_is_fenced():
    async def body():
        sessions, session = opened()
        for epoch, agent in ((2, "a"), (4, "a"), (3, "b")):
            with pytest.raises(Fenced):
                sessions.find_for_agent(LeaseId("l"), epoch, AgentId(agent))
        assert sessions.find_for_agent(LeaseId("l"), 3, AgentId("a")) is session
        error = Fenced("over")
        sessions.end(LeaseId("l"), error)
        sessions.end(LeaseId("l"), Fenced("again"))
        assert session.ended.result() is error
        with pytest.raises(Fenced, match="it ended"):
            sessions.find(LeaseId("l"), 3)

    asyncio.run(body())


def test_reply_to_a_client_that_was_cancelled_while_it_drained_breaks_nothing():
    async def body():
        _, session = opened()
        agent, first = session.serve(Sink()), session.attach(Sink())
        await first.send(load(2))
        draining = asyncio.create_task(first.drain())
        await asyncio.sleep(0)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        await agent.take(reply(1))
        first.detach()
        to_second = Sink()
        second = session.attach(to_second)
        await second.send(load(2))
        await agent.take(reply(2))
        await second.drain()
        assert to_second.seen == [2]

    asyncio.run(body())


def blob_of(name):
    return tensor_pb2.Tensor(
        dtype="uint8", shape=[1], blob=digest_pb2.Digest(sha256=name, size_bytes=1)
    )


TAKING = {
    "call": lambda a, b: {"call": session_pb2.CallRequest(inputs=[blob_of(a), blob_of(b)])},
    "batch": lambda a, b: {
        "batch": session_pb2.BatchRequest(
            calls=[session_pb2.CallRequest(inputs=[blob_of(it)]) for it in (a, b)]
        )
    },
    "measure": lambda a, b: {
        "measure": measure_pb2.MeasureRequest(
            subject=measure_pb2.Subject(
                artifact=measure_pb2.ArtifactRef(digest=digest_pb2.Digest(sha256=a, size_bytes=1))
            ),
            workload=measure_pb2.Workload(inputs=[blob_of(b)]),
        )
    },
}


@pytest.mark.parametrize("kind", TAKING)
def test_session_needs_what_its_requests_take_in_until_they_are_answered(kind):
    async def body():
        sessions, session = opened()
        agent, client = session.serve(Sink()), session.attach(Sink())
        inputs = {"1" * 64, "2" * 64}
        for seq in (2, 3):
            request = session_pb2.SessionRequest(seq=seq, **TAKING[kind](*sorted(inputs)))
            await client.send(request)
            assert inputs <= sessions.needed()
        await agent.take(reply(1))
        assert inputs <= sessions.needed()
        await agent.take(reply(2))
        assert not inputs & sessions.needed()

    asyncio.run(body())


def test_session_whose_client_left_needs_no_inputs_any_more():
    async def body():
        sessions, session = opened()
        session.serve(Sink())
        client = session.attach(Sink())
        await client.send(session_pb2.SessionRequest(seq=2, **TAKING["call"]("1" * 64, "2" * 64)))
        client.detach()
        assert sessions.needed() == set()

    asyncio.run(body())


def test_blobs_of_a_session_that_is_to_be_are_needed_as_long_as_it_is_waited_for():
    sessions = Sessions()
    with sessions.keeping(["a"]), contextlib.suppress(KeyError):
        with sessions.keeping(["a", "b"]):
            assert sessions.needed() == {"a", "b"}
        assert sessions.needed() == {"a"}
        raise KeyError
    assert sessions.needed() == set()
