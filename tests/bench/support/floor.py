"""The floor of a remote call: a message of the same size on the same way, with nothing done for it on any part of it.

Owns: a relay and a peer that dials it, each a process on the services' own event loop, and a synchronous client, in
plain text. Does not own: which figures are made of it.

Invariant: what comes back is what was sent, so that every message has crossed the relay twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import grpc

from farm.core.loop import run_service

MESSAGE = bytes(150)
"""About what a call of a small kernel sends."""


@contextlib.contextmanager
def relayed() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Give what sends one message over the relay to the peer and back, and what asks the relay alone in a call."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    relay = context.Process(target=_run_relay, args=(theirs,), daemon=True)
    relay.start()
    port = ours.recv()
    peer = context.Process(target=_run_peer, args=(port,), daemon=True)
    peer.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            replies = channel.stream_stream("/floor/Attach")(iter(requests.get, None))
            ask = channel.unary_unary("/floor/Ask")

            def over() -> None:
                requests.put(MESSAGE)
                assert next(replies) == MESSAGE

            def alone() -> None:
                assert ask(MESSAGE) == MESSAGE

            yield over, alone
            requests.put(None)
            replies.cancel()
    finally:
        for process in (peer, relay):
            process.kill()
            process.join()


def _run_relay(pipe: Connection) -> None:
    run_service(_relay(pipe))


async def _relay(pipe: Connection) -> None:
    peer: asyncio.Future[grpc.aio.ServicerContext] = asyncio.get_running_loop().create_future()
    client: asyncio.Future[grpc.aio.ServicerContext] = asyncio.get_running_loop().create_future()

    async def forward(context: grpc.aio.ServicerContext, to: grpc.aio.ServicerContext) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await to.write(message)

    async def serve(_: object, context: grpc.aio.ServicerContext) -> None:
        peer.set_result(context)
        await forward(context, await client)

    async def attach(_: object, context: grpc.aio.ServicerContext) -> None:
        client.set_result(context)
        await forward(context, await peer)

    async def ask(message: bytes, _: grpc.aio.ServicerContext) -> bytes:
        return message

    handlers = {
        "Serve": grpc.stream_stream_rpc_method_handler(serve),
        "Attach": grpc.stream_stream_rpc_method_handler(attach),
        "Ask": grpc.unary_unary_rpc_method_handler(ask),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("floor", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(port)
    await server.wait_for_termination()


def _run_peer(port: int) -> None:
    run_service(_peer(port))


async def _peer(port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream("/floor/Serve")()
        while (message := await call.read()) is not grpc.aio.EOF:
            await call.write(message)
