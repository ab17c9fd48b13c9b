"""BuildService on the wire.

Owns: its messages' checks. Does not own: building. Invariant: a stream that ends well ends with the result.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from farm.api.v1 import build_pb2, build_pb2_grpc
from farm.errors import InvalidInput
from farm.rpc import digest_from_proto, digest_to_proto
from farm_tracker.builds import BuildNews, BuildResult, ItemNews, ItemState
from farm_tracker.requests import MAX_ITEMS, BuildRequest, codes_of, item
from farm_tracker.service.convert import ITEM_KINDS, failure_to_proto
from farm_tracker.service.streams import errors_to_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import grpc

    from farm_tracker.builds import Builds
    from farm_tracker.state.work import UnitSpec

MAX_RESULT_TEXT = 2 << 20
"""Bytes of error messages in one result, and in one message beside it: it fits, whatever the number of items."""

_KINDS = {number: kind for kind, number in ITEM_KINDS.items()}
_STATES = {
    ItemState.QUEUED: build_pb2.ITEM_STATE_QUEUED,
    ItemState.BUILDING: build_pb2.ITEM_STATE_BUILDING,
    ItemState.DONE: build_pb2.ITEM_STATE_DONE,
    ItemState.FAILED: build_pb2.ITEM_STATE_FAILED,
}


class BuildService(build_pb2_grpc.BuildServiceServicer):
    """Serves one coordinator."""

    def __init__(self, builds: Builds) -> None:
        self._builds = builds

    async def Build(
        self, request: build_pb2.BuildRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[build_pb2.BuildEvent]:
        """Build everything and merge it."""
        async with errors_to_status(context):
            events = self._builds.build(request_from_proto(request))
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event_to_proto(event)


def request_from_proto(message: build_pb2.BuildRequest) -> BuildRequest:
    """Return a checked request; raises InvalidInput and its kinds."""
    if len(message.items) > MAX_ITEMS:
        raise InvalidInput(f"build: {len(message.items)} items; send 1 to {MAX_ITEMS}")
    items = tuple(map(_item, message.items))
    return BuildRequest(
        request_key=message.request_key,
        target_host=message.target_host,
        items=items,
        keep_going=message.keep_going,
        codes=codes_of((spec, it.code) for spec, it in zip(items, message.items, strict=True)),
    )


def event_to_proto(news: BuildNews) -> build_pb2.BuildEvent:
    """Return the message for some news of a build."""
    return build_pb2.BuildEvent(
        items=_all_news(news.items), result=_result(news.result) if news.result else None
    )


def _result(result: BuildResult) -> build_pb2.BuildResult:
    return build_pb2.BuildResult(
        artifact=digest_to_proto(result.artifact) if result.artifact else None,
        items=_all_news(result.items),
        data=result.data,
    )


def _all_news(items: Sequence[ItemNews]) -> list[build_pb2.ItemEvent]:
    failed = sum(it.failure is not None for it in items)
    limit = MAX_RESULT_TEXT // max(1, failed)
    return [_news(_cut(it, limit)) for it in items]


def _item(message: build_pb2.BuildItem) -> UnitSpec:
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise InvalidInput(f"build: item {message.symbol[:80]!r} has no kind; send DEVICE or HOST")
    return item(kind, message.target, message.symbol, digest_from_proto(message.function))


def _news(news: ItemNews) -> build_pb2.ItemEvent:
    return build_pb2.ItemEvent(
        index=news.index,
        state=_STATES[news.state],
        agent_id=news.agent_id,
        seconds=news.seconds,
        error=failure_to_proto(news.failure) if news.failure else None,
        cached=news.cached,
    )


def _cut(news: ItemNews, limit: int) -> ItemNews:
    if news.failure is None or len(news.failure.message) <= limit:
        return news
    return replace(news, failure=replace(news.failure, message=news.failure.message[:limit]))
