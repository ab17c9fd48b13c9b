"""Ending asyncio tasks for certain, and what has to be finished before they end.

Owns: cancelling until it works, and work that no cancellation cuts short. Does not own: tasks.

Invariant: the tasks are done when `end_tasks` returns, the work is done when `finish` returns or raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

AGAIN_S = 0.5

T = TypeVar("T")


async def end_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they are done.

    Notes
    -----
    One request is not enough: a gRPC call whose connection breaks in the moment of the cancellation raises the broken
    connection instead, and a task that mends broken connections then goes on.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Do `work` to its end, also if this task is cancelled meanwhile, as often as that may be.

    Raises
    ------
    CancelledError
        The task was cancelled; the work is done.
    """
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # the cancellation is what the caller learns
        raise asyncio.CancelledError
    return task.result()
