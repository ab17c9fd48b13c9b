"""What all servicers share: the boundary between errors and statuses, and streams that may be gone.

Owns: turning errors into statuses, writing to a peer that may have left. Does not own: any service.

Invariant: a call ends with a status of the contract; a bug is INTERNAL and leaves its traceback in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from farm.errors import FarmError, InvalidInput, NobodyCanServe
from farm.rpc import abort_with
from farm_tracker.identity.caller import labels

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

log = logging.getLogger(__name__)

M = TypeVar("M")


@contextlib.asynccontextmanager
async def errors_to_status(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """End the call with the status of whatever is raised inside."""
    try:
        yield
    except FarmError as error:
        await abort_with(context, seen_by_caller(error))
    except DecodeError as error:  # of a message that a stream read
        await abort_with(
            context,
            InvalidInput(
                f"request: not a message of this method ({error}); run one version at both ends"
            ),
        )
    except (grpc.aio.BaseError, asyncio.CancelledError):
        raise  # the call is over already
    except Exception as error:  # the boundary
        log.exception("internal error")
        await abort_with(
            context, FarmError(f"tracker: internal error ({type(error).__name__}); see its log")
        )


def seen_by_caller(error: FarmError) -> FarmError:
    """Return an error without the devices that the caller may not see: the nearest ones are any of the farm's."""
    if (
        not isinstance(error, NobodyCanServe)
        or "selector" not in error.details
        or not labels().terms
    ):
        return error
    selector = error.details["selector"]
    return NobodyCanServe(
        f"selector {selector!r}: no device that this token may use (those with {labels()}) fits; change the "
        "selector, see `farm devices`, or ask for another token",
        selector=selector,
    )


async def read(context: grpc.aio.ServicerContext[M, Any]) -> M | None:
    """Return the next message of a stream, None at its end."""
    message = await context.read()
    return None if message is grpc.aio.EOF else message


async def write(context: grpc.aio.ServicerContext[Any, M], message: M) -> bool:
    """Send a message; False if the peer is gone, which its own call will notice."""
    try:
        await context.write(message)
    except grpc.aio.BaseError:
        return False
    return True


async def run_until(*works: Coroutine[Any, Any, None], ends: Sequence[asyncio.Future[Any]]) -> None:
    """Run all of `works` until one returns or one of `ends` is done; raises the error that an end holds."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait([*tasks, *ends], return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            if end.done() and end.result() is not None:
                raise end.result()
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
