"""Bytes that are no message of the method they are sent to."""

from __future__ import annotations

import grpc
import pytest

from farm.errors import InvalidInput
from farm.rpc import error_from_rpc

STREAMS = (
    "/farm.api.v1.SessionService/Attach",
    "/farm.api.v1.AgentService/Synchronise",
    "/farm.api.v1.AgentService/Serve",
    "/farm.api.v1.BlobService/Write",
)


@pytest.mark.parametrize("method", STREAMS)
def test_stream_of_garbage_is_refused_as_invalid_input(start_farm, run_async, method):
    async def body() -> None:
        async with start_farm() as farm:
            call = farm.client.channel.stream_stream(method)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in call(iter([b"\xff" * 50])):
                    pass
            error = error_from_rpc(caught.value)
            assert type(error) is InvalidInput
            assert "not a message of this method" in error.message

    run_async(body)
