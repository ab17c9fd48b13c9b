"""Building on a farm."""

from __future__ import annotations

from collections.abc import Iterable

from farm.api.v1 import build_pb2 as pb
from farm.artifact import Artifact
from farm.building import BuildPlan, ItemOutcome, ItemState, Progress, failure
from farm.client.transfer import Store
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
    """Store a plan's functions and return the request for it."""
    digests = store.put_all([item.code for item in plan.items])
    return pb.BuildRequest(
        request_key=key,
        target_host=str(plan.target_host),
        items=[
            pb.BuildItem(
                kind=_KINDS[item.kind],
                target=str(item.target),
                symbol=item.function.name,
                function=digest_to_proto(digest),
            )
            for item, digest in zip(plan.items, digests, strict=True)
        ],
        keep_going=keep_going,
    )


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
        if event.HasField("result"):
            outcomes = [_outcome(plan, item) for item in event.result.items]
            if progress is not None and not is_told:  # all of it was cached
                for outcome in outcomes:
                    progress(outcome)
            failed = failure(outcomes)
            if failed:
                raise failed
            return Artifact.from_bytes(store.get(digest_from_proto(event.result.artifact)))
        is_told = True
        if progress is not None:
            progress(_outcome(plan, event.item))
    raise InfrastructureError("build: the tracker ended without a result; build again")


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
