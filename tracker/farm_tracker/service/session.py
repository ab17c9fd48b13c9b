"""SessionService: a client's end of a session.

Owns: the first request and the relay of the others. Does not own: sessions. Invariant: replies come in the order of
the requests, each once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from farm.api.v1 import session_pb2, session_pb2_grpc
from farm.core.ids import LeaseId
from farm.errors import InvalidInput
from farm_tracker.service.streams import errors_to_status, read, run_until, write

if TYPE_CHECKING:
    import grpc

    from farm_tracker.identity.leases import LeaseTokens
    from farm_tracker.sessions import ClientEnd, Sessions

    Context = grpc.aio.ServicerContext[session_pb2.SessionRequest, session_pb2.SessionReply]


class SessionService(session_pb2_grpc.SessionServiceServicer):
    """Clients of one tracker's sessions."""

    def __init__(self, sessions: Sessions, tokens: LeaseTokens) -> None:
        self._sessions = sessions
        self._tokens = tokens

    async def Attach(  # type: ignore[override]
        self,
        request_iterator: Any,  # noqa: ANN401 - read through the context
        context: Context,
    ) -> None:
        """Relay one client's requests and replies."""
        async with errors_to_status(context):
            first = await read(context)
            if first is None or first.WhichOneof("request") != "attach" or first.seq != 1:
                raise InvalidInput("session: the first request must be number 1 and carry `attach`")
            asked = first.attach
            session = self._sessions.find(LeaseId(asked.lease_id), asked.epoch)
            self._tokens.check(asked.lease_id, asked.epoch, asked.lease_token)
            client = session.attach(partial(write, context))
            try:
                attached = session_pb2.AttachReply(device_id=session.lease.device_id or "")
                await write(context, session_pb2.SessionReply(seq=1, attached=attached))
                await run_until(_relay(context, client), ends=[session.ended, client.failed])
            finally:
                client.detach()


async def _relay(context: Context, client: ClientEnd) -> None:
    while (request := await read(context)) is not None:
        await client.send(request)
    await client.drain()
