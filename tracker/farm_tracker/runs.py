"""Runs: one call of one function without holding a session.

Owns: lease, load, call, release as one thing. Does not own: any of its parts.

Invariant: the lease is released whatever happens. It is renewed as long as the parts may take, so that a run ends at
its own limit, never at its lease's; a tracker that dies leaves a device to others after `TTL_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farm.api.v1 import run_pb2, session_pb2
from farm.core.limits import JOB_END_S
from farm.errors import FarmError, InfrastructureError
from farm_tracker.state.events import LeaseReleased, LeaseRenewed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from farm.api.v1 import digest_pb2
    from farm.target import Selector
    from farm_tracker.sessions import ClientEnd, Session
    from farm_tracker.state.demand import Variant
    from farm_tracker.state.model import Device, Lease
    from farm_tracker.tracker import Tracker

TTL_S = 60.0
"""Of the lease, renewed in time."""
LOAD_LIMIT_S = 90.0
"""Until the artifact is on the agent and loaded."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run where. `call` has no module id yet."""

    selector: Selector
    artifact: digest_pb2.Digest
    call: session_pb2.CallRequest
    limit_s: float
    wait_s: float
    account: str
    variants: tuple[Variant, ...]


async def run(
    tracker: Tracker, request: RunRequest
) -> AsyncGenerator[Device | run_pb2.RunResult, None]:
    """Yield the device that was leased, then the result.

    Raises
    ------
    FarmError
        No device could be had, or it was lost, or its agent did not answer in time. What the kernel did wrong is in
        the result.
    """
    # It may wait for long, and then its agent fetches them.
    with tracker.sessions.keeping(_blobs(request)):
        async with contextlib.aclosing(_run(tracker, request)) as events:
            async for event in events:
                yield event


async def _run(
    tracker: Tracker, request: RunRequest
) -> AsyncGenerator[Device | run_pb2.RunResult, None]:
    granted = await tracker.acquire(
        request.selector,
        ttl_s=TTL_S,
        wait_s=request.wait_s,
        holder="run",
        account=request.account,
        variants=request.variants,
    )
    lease = granted.lease
    term_s = tracker.state.limits.prepare_s + LOAD_LIMIT_S + request.limit_s + JOB_END_S
    renewing = asyncio.create_task(_renew(tracker, lease, term_s))
    try:
        yield granted.device
        session = tracker.sessions.find(lease.lease_id, lease.epoch)
        async with asyncio.timeout(term_s):
            result = await _call(session, request)
        yield result
    except TimeoutError as error:
        raise InfrastructureError(
            f"run: agent {granted.device.agent_id} did not answer within {term_s:g} s; run it again"
        ) from error
    finally:
        renewing.cancel()
        tracker.post_last(LeaseReleased(lease.lease_id, lease.epoch))


def _blobs(request: RunRequest) -> list[str]:
    inputs = [it.blob.sha256 for it in request.call.inputs if it.HasField("blob")]
    return [request.artifact.sha256, *inputs]


async def _renew(tracker: Tracker, lease: Lease, term_s: float) -> None:
    """Keep a lease alive for its term; one that ends meanwhile tells that by its session."""
    until = tracker.clock.now() + term_s
    while tracker.clock.now() < until:
        await asyncio.sleep(TTL_S / 3)
        try:
            await tracker.post(LeaseRenewed(lease.lease_id, lease.epoch, TTL_S))
        except FarmError:
            return


async def _call(session: Session, request: RunRequest) -> run_pb2.RunResult:
    replies: asyncio.Queue[session_pb2.SessionReply] = asyncio.Queue(1)

    async def write(reply: session_pb2.SessionReply) -> bool:
        await replies.put(reply)
        return True

    client = session.attach(write)
    try:
        loaded = await _ask(
            session,
            client,
            replies,
            session_pb2.SessionRequest(
                seq=2, load=session_pb2.LoadRequest(artifact=request.artifact)
            ),
        )
        if loaded.HasField("error"):
            return run_pb2.RunResult(error=loaded.error)
        request.call.module_id = loaded.loaded.module_id
        called = await _ask(
            session, client, replies, session_pb2.SessionRequest(seq=3, call=request.call)
        )
    finally:
        client.detach()
    target = next(
        (it.target for it in loaded.loaded.functions if it.symbol == request.call.symbol), ""
    )
    if called.HasField("error"):
        return run_pb2.RunResult(error=called.error, target=target)
    return run_pb2.RunResult(
        outputs=called.called.outputs, samples_ns=called.called.samples_ns, target=target
    )


async def _ask(
    session: Session,
    client: ClientEnd,
    replies: asyncio.Queue[session_pb2.SessionReply],
    request: session_pb2.SessionRequest,
) -> session_pb2.SessionReply:
    """Send one request and return its reply, unless the session ends first."""
    answer = asyncio.create_task(_exchange(client, replies, request))
    try:
        ends: set[asyncio.Future[Any]] = {answer, session.ended, client.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise _end_of(session, client)
    finally:
        answer.cancel()


async def _exchange(
    client: ClientEnd,
    replies: asyncio.Queue[session_pb2.SessionReply],
    request: session_pb2.SessionRequest,
) -> session_pb2.SessionReply:
    await client.send(request)
    return await replies.get()


def _end_of(session: Session, client: ClientEnd) -> FarmError:
    for end in (session.ended, client.failed):
        if end.done():
            return end.result()
    return InfrastructureError("run: its session ended without a reason; run it again")
