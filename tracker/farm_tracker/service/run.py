"""RunService on the wire. Owns: its messages' checks. Invariant: the last message is the result."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from farm.api.v1 import run_pb2, run_pb2_grpc, session_pb2
from farm.core.limits import DEFAULT_LIMIT_S, MAX_LIMIT_S, MAX_REPEAT, MAX_WAIT_S, MIN_LIMIT_S
from farm.errors import NotFound
from farm.rpc import digest_from_proto
from farm.target import Selector
from farm_tracker import runs
from farm_tracker.identity.caller import caller
from farm_tracker.service.convert import check_count, check_range, check_text, device_to_proto
from farm_tracker.service.streams import errors_to_status
from farm_tracker.state.model import DEFAULT_ACCOUNT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from farm_tracker.cas import BlobStore
    from farm_tracker.tracker import Tracker
    from farm_tracker.variants import Variants

MAX_SYMBOL_BYTES = 256


class RunService(run_pb2_grpc.RunServiceServicer):
    """Runs on one farm."""

    def __init__(self, tracker: Tracker, blobs: BlobStore, variants: Variants) -> None:
        self._tracker = tracker
        self._blobs = blobs
        self._variants = variants

    async def Run(
        self, request: run_pb2.RunRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[run_pb2.RunEvent]:
        """Lease, load, call, release."""
        async with errors_to_status(context):
            events = runs.run(self._tracker, await self._request(request))
            async with contextlib.aclosing(events):
                async for event in events:
                    if isinstance(event, run_pb2.RunResult):
                        yield run_pb2.RunEvent(result=event)
                    else:
                        yield run_pb2.RunEvent(leased=device_to_proto(event))

    async def _request(self, message: run_pb2.RunRequest) -> runs.RunRequest:
        digest = digest_from_proto(message.artifact)
        if not self._blobs.has(digest):
            raise NotFound(f"run: artifact {digest} is not in the store; send it first")
        check_count(message.repeat, MAX_REPEAT, "repeat")
        limit_s = message.limit_s or DEFAULT_LIMIT_S
        check_range(limit_s, MIN_LIMIT_S, MAX_LIMIT_S, "limit_s")
        return runs.RunRequest(
            selector=Selector.parse(message.selector),
            artifact=message.artifact,
            call=session_pb2.CallRequest(
                symbol=check_text(message.symbol, "symbol", MAX_SYMBOL_BYTES),
                inputs=message.inputs,
                repeat=message.repeat,
                limit_s=limit_s,
            ),
            limit_s=limit_s,
            wait_s=check_range(message.wait_s, 0.0, MAX_WAIT_S, "wait_s"),
            account=caller().account or DEFAULT_ACCOUNT,
            variants=await self._variants.of(digest, message.symbol),
        )
