"""AgentService: control streams of agents, and their ends of sessions.

Owns: both streams. Does not own: what reports mean. Invariant: a process that was replaced is told so, on both.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from farm.api.v1 import agent_pb2, agent_pb2_grpc, session_pb2
from farm.core.ids import AgentId, LeaseId
from farm.errors import Fenced, InfrastructureError, InvalidInput
from farm_tracker.crash_points import POINTS
from farm_tracker.identity.caller import check_speaks_for
from farm_tracker.service.convert import desired_to_proto
from farm_tracker.service.objects import Objects
from farm_tracker.service.reports import Reports
from farm_tracker.service.sequence import Newest
from farm_tracker.service.streams import errors_to_status, read, run_until, write

if TYPE_CHECKING:
    import grpc

    from farm.core.ids import AttemptId
    from farm_tracker.cas import BlobStore
    from farm_tracker.functions import Functions
    from farm_tracker.links import Link
    from farm_tracker.sessions import AgentEnd, Session
    from farm_tracker.state.commands import PushDesired
    from farm_tracker.state.events import AgentReported
    from farm_tracker.tracker import Tracker

    Control = grpc.aio.ServicerContext[agent_pb2.AgentState, agent_pb2.DesiredState]
    Serving = grpc.aio.ServicerContext[agent_pb2.ServeFrame, session_pb2.SessionRequest]


TELL_EVERY_S = 4.0


class AgentService(agent_pb2_grpc.AgentServiceServicer):
    """Agents of one tracker."""

    def __init__(self, tracker: Tracker, blobs: BlobStore, functions: Functions) -> None:
        self._tracker = tracker
        self._blobs = blobs
        self._functions = functions
        self._newest = Newest()

    async def Synchronise(  # type: ignore[override]
        self,
        request_iterator: Any,  # noqa: ANN401 - read through the context
        context: Control,
    ) -> None:
        """Take an agent's states, tell it the desired ones."""
        async with errors_to_status(context):
            first = await read(context)
            if first is None:
                raise InvalidInput("agent: an empty stream; send your state first")
            check_speaks_for(first.agent_id)
            objects = Objects(self._blobs)
            await objects.take(first)
            if not self._newest.is_newer(first):
                raise InfrastructureError(
                    f"agent {first.agent_id}: an old report began the stream (number {first.sequence}); dial again"
                )
            reports, number = Reports(self._blobs), first.sequence
            link = self._tracker.connect(_arrived(reports.take(first)))
            self._newest.note(link.agent_id, link.instance_id, number)
            try:
                await run_until(
                    self._push(context, link),
                    self._listen(context, link, objects, reports),
                    ends=[link.ended],
                )
            finally:
                self._tracker.disconnect(link)

    async def Serve(  # type: ignore[override]
        self,
        request_iterator: Any,  # noqa: ANN401 - read through the context
        context: Serving,
    ) -> None:
        """Relay one session between an agent and its client."""
        async with errors_to_status(context):
            first = await read(context)
            if first is None or first.WhichOneof("frame") != "open":
                raise InvalidInput("session: the first frame must carry `open`")
            session = self._session(first.open)
            end = session.serve(partial(write, context))
            try:
                await run_until(_relay(context, end), ends=[session.ended, end.replaced])
            finally:
                end.leave()

    def _session(self, opened: agent_pb2.ServeOpen) -> Session:
        check_speaks_for(opened.agent_id)
        agent = self._tracker.state.agents.get(AgentId(opened.agent_id))
        if agent is None or agent.instance_id != opened.instance_id:
            raise Fenced(
                f"agent {opened.agent_id[:80]}: process {opened.instance_id[:80]} does not speak for "
                "it; connect first"
            )
        return self._tracker.sessions.find_for_agent(
            LeaseId(opened.lease_id), opened.epoch, agent.agent_id
        )

    async def _push(self, context: Control, link: Link) -> None:
        revision = 0
        desired = await link.take()
        tasks = _Tasks(self._functions)
        while True:
            revision += 1
            now = self._tracker.clock.now()
            state = self._tracker.state
            heartbeat_s = state.limits.heartbeat_of(len(state.agents))
            codes = tasks.codes(desired)
            message = desired_to_proto(desired, revision, heartbeat_s, now, codes)
            if not await write(context, message):
                return
            # The same again after a while: an agent that hears nothing takes its tracker for gone.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TELL_EVERY_S):
                    desired = await link.take()

    async def _listen(
        self, context: Control, link: Link, objects: Objects, reports: Reports
    ) -> None:
        while (state := await read(context)) is not None:
            if (state.agent_id, state.instance_id) != (link.agent_id, link.instance_id):
                raise InvalidInput("agent: another agent on the same stream; open one for each")
            await objects.take(state)
            if self._newest.is_newer(state):
                self._newest.note(link.agent_id, link.instance_id, state.sequence)
                self._tracker.post(_arrived(reports.take(state)))


class _Tasks:
    """What one stream has said of build tasks: a function travels with its task the first time only."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._told: frozenset[AttemptId] = frozenset()

    def codes(self, desired: PushDesired) -> dict[AttemptId, bytes]:
        """Return the functions that the message of a desired state carries, by attempt."""
        new = [order for order in desired.builds if order.attempt_id not in self._told]
        self._told = frozenset(order.attempt_id for order in desired.builds)
        found = {it.attempt_id: self._functions.code_of(it.spec.function) for it in new}
        return {attempt_id: code for attempt_id, code in found.items() if code is not None}


def _arrived(report: AgentReported) -> AgentReported:
    if any(run.is_finished for run in report.runs):
        POINTS.passed("result.arrived")
    return report


async def _relay(context: Serving, end: AgentEnd) -> None:
    while (frame := await read(context)) is not None:
        if frame.WhichOneof("frame") != "reply":
            raise InvalidInput("session: a frame without a reply; send replies after `open`")
        await end.take(frame.reply)
