"""A gRPC proxy that carries every call of a tracker, and repeats and reorders the messages of control streams.

Owns: one server in front of a tracker; what it does to `AgentService.Synchronise`. Does not own: what messages mean: it
carries bytes, and looks only whose they are.

Invariant: nothing is invented: each message that arrives was sent by the other end, once at least, on this stream or an
earlier one of the same agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

import grpc

from farm.api.v1 import agent_pb2
from farm.rpc.channels import channel_options, server_options

CONTROL = "/farm.api.v1.AgentService/Synchronise"


class Wire:
    """One proxy; runs in a thread of its own from `start` to `close`.

    Parameters
    ----------
    target
        ``host:port`` of the tracker.
    seed
        Of what is repeated, and when.
    """

    def __init__(self, target, seed=0):
        self.target = target
        self.address = ""
        self.repeats = True
        self.reorders = True
        self.ages = ("up", "down")  # directions in which messages of the past come again
        self.counts = {"sent": 0, "repeated": 0, "old": 0}
        self._random = random.Random(seed)
        self._seen = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self, address="127.0.0.1:0"):
        """Serve; return the address."""
        self._thread.start()
        self.address = asyncio.run_coroutine_threadsafe(self._serve(address), self._loop).result(60)
        return self.address

    def close(self):
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, address):
        self._channel = grpc.aio.insecure_channel(self.target, options=channel_options())
        self._server = grpc.aio.server(options=server_options())
        self._server.add_generic_rpc_handlers([_Every(self)])
        port = self._server.add_insecure_port(address)
        await self._server.start()
        return f"{address.rpartition(':')[0]}:{port}"

    async def _end(self):
        await self._server.stop(None)
        await self._channel.close()
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        if calls:
            await asyncio.wait(calls, timeout=60)

    async def carry(self, method, requests, context):
        """Carry one call, of whatever kind: on the wire all are streams."""
        metadata = [
            (key, value)
            for key, value in context.invocation_metadata()
            if not key.startswith(("grpc-", "user-agent", ":"))
        ]
        speaker = []
        call = self._channel.stream_stream(method)(
            self._altered(requests, "up", speaker) if method == CONTROL else requests,
            metadata=metadata,
            timeout=context.time_remaining(),
        )
        try:
            replies = self._altered(call, "down", speaker) if method == CONTROL else call
            async for reply in replies:
                yield reply
            context.set_trailing_metadata(tuple(await call.trailing_metadata()))
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details(), tuple(error.trailing_metadata()))
        finally:
            call.cancel()

    async def _altered(self, messages, direction, speaker):
        """Yield each message once or more, an old one now and then, and some only after the next one."""
        held = None
        first = True
        async for message in messages:
            if not speaker:
                speaker.append(agent_pb2.AgentState.FromString(message).agent_id)
            seen = self._seen.setdefault((speaker[0], direction), [])
            out = [message]
            if not first and self.reorders and held is None and self._random.random() < 0.3:
                held, out = message, []  # the next one overtakes it
            elif held is not None:
                out.append(held)
                held = None
            if not first and self.repeats:
                out = [it for it in out for _ in range(self._random.choice((1, 2, 3)))]
                if seen and direction in self.ages and self._random.random() < 0.5:
                    out.append(self._random.choice(seen))
                    self.counts["old"] += 1
            first = False
            self.counts["sent"] += 1
            self.counts["repeated"] += max(0, len(out) - 1)
            seen.append(message)
            del seen[:-200]
            for it in out:
                yield it


class _Every(grpc.GenericRpcHandler):
    """Takes calls of every method."""

    def __init__(self, wire):
        self._wire = wire

    def service(self, details):
        async def carry(requests, context):
            with contextlib.suppress(asyncio.CancelledError):
                async for reply in self._wire.carry(details.method, requests, context):
                    yield reply

        return grpc.stream_stream_rpc_method_handler(carry)
