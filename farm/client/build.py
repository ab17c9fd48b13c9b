"""Building on a farm."""

from __future__ import annotations

from collections.abc import Iterable

from farm.api.v1 import build_pb2 as pb
from farm.artifact import Artifact
from farm.building import BuildPlan, ItemOutcome, ItemState, Progress, failure
from farm.client.transfer import Store
from farm.core.digest import digest_of
from farm.core.limits import MAX_INLINE_FUNCTION_BYTES, MAX_INLINE_FUNCTIONS_BYTES
from farm.errors import InfrastructureError
from farm.rpc import digest_from_proto, digest_to_proto, error_from_proto

_KINDS = {"device": pb.ITEM_KIND_DEVICE, "host": pb.ITEM_KIND_HOST}
_STATES = {
    pb.ITEM_STATE_QUEUED: ItemState.QUEUED,
    pb.ITEM_STATE_BUILDING: ItemState.BUILDING,
    pb.ITEM_STATE_DONE: ItemState.DONE,
    pb.ITEM_STATE_FAILED: ItemState.FAILED,
}


def build_request(plan: BuildPlan, store: Store, key: str, *, keep_going: bool) -> pb.BuildRequest:
    """Return the request for a plan; functions that are large, or too many to travel with it, are stored."""
    codes = dict.fromkeys(item.code for item in plan.items)
    digests = {code: digest_of(code) for code in codes}
    inside, left_bytes = set(), MAX_INLINE_FUNCTIONS_BYTES
    for code in codes:
        if len(code) <= min(MAX_INLINE_FUNCTION_BYTES, left_bytes):
            inside.add(code)
            left_bytes -= len(code)
    store.put_all([code for code in codes if code not in inside])
    request = pb.BuildRequest(
        request_key=key, target_host=str(plan.target_host), keep_going=keep_going
    )
    for item in plan.items:
        request.items.add(
            kind=_KINDS[item.kind],
            target=str(item.target),
            symbol=item.function.name,
            function=digest_to_proto(digests[item.code]),
            code=item.code if item.code in inside else b"",
        )
        inside.discard(item.code)
    return request


def follow(
    plan: BuildPlan, events: Iterable[pb.BuildEvent], store: Store, progress: Progress | None
) -> Artifact:
    """Report a build's events until it ends, and fetch its artifact.

    Raises
    ------
    BuildFailed
        Something did not build; the message reports every item.
    InfrastructureError
        The tracker ended the stream without a result.
    """
    is_told = False
    for event in events:
        if progress is not None:
            for item in event.items:
                is_told = True
                progress(_outcome(plan, item))
        if event.HasField("result"):
            outcomes = [_outcome(plan, item) for item in event.result.items]
            if progress is not None and not is_told:  # all of it was cached
                for outcome in outcomes:
                    progress(outcome)
            failed = failure(outcomes)
            if failed:
                raise failed
            return Artifact.from_bytes(_artifact(event.result, store))
    raise InfrastructureError("build: the tracker ended without a result; build again")


def _artifact(result: pb.BuildResult, store: Store) -> bytes:
    digest = digest_from_proto(result.artifact)
    return store.take(digest, result.data) if result.data else store.get(digest)


def _outcome(plan: BuildPlan, event: pb.ItemEvent) -> ItemOutcome:
    if not 0 <= event.index < len(plan.items) or event.state not in _STATES:
        raise InfrastructureError(
            f"build: an impossible event (item {event.index}, state {event.state}); "
            f"run the same version of kernel-farm at both ends"
        )
    return ItemOutcome(
        item=plan.items[event.index],
        state=_STATES[event.state],
        agent_id=event.agent_id,
        seconds=event.seconds,
        cached=event.cached,
        error=error_from_proto(event.error) if event.HasField("error") else None,
    )
