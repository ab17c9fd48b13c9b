"""Going on while the tracker is away.

Owns: which failures mean that it is away, how long to believe in its return, and the pauses between tries. Does not
own: what is tried, which must be safe to do twice.

Invariant: no try and no pause goes beyond a deadline.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import grpc

from farm.core.clock import Clock, SystemClock
from farm.errors import FarmError, InfrastructureError, StillRunning, TrackerUnreachable
from farm.rpc import rpc_errors

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CALL_S = 10.0
"""Deadline of one try at a call that the tracker answers at once."""
STREAM_S = 300.0
"""Deadline of one stream; it is then opened again, so that one that died unseen is noticed."""
AWAY_S = 120.0
"""How long the tracker may be away before a call gives up."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


class Stream(Protocol[T_co]):
    """Messages of a call that can be given up."""

    def __iter__(self) -> Iterator[T_co]:
        """Iterate over the messages."""
        ...

    def cancel(self) -> object:
        """End the call."""
        ...


@dataclass(slots=True)
class Patience:
    """How much longer one operation goes on; one object for each operation.

    Parameters
    ----------
    address
        Of the tracker, for messages.
    deadline
        When the caller stops waiting, on the clock's `now`; None: never.
    what
        What is waited for, for messages.
    away_s
        How long the tracker may be away without a break.
    """

    address: str
    deadline: float | None = None
    what: str = "call"
    away_s: float = AWAY_S
    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], None] = time.sleep
    _away_since: float | None = None
    _pause_s: float = FIRST_PAUSE_S

    def left_s(self, most_s: float) -> float:
        """Return how long the next try may take.

        Raises
        ------
        StillRunning
            The caller's deadline has passed.
        """
        if self.deadline is None:
            return most_s
        left = self.deadline - self.clock.now()
        if left <= 0:
            raise StillRunning(f"{self.what}: not ended in time; wait again")
        return min(most_s, left)

    def answered(self) -> None:
        """Note that the tracker is there."""
        self._away_since, self._pause_s = None, FIRST_PAUSE_S

    def bear(self, error: FarmError) -> None:
        """Pause after a failed try; raises `error` if another cannot help, or none is left."""
        if not is_away(error):
            raise error
        now = self.clock.now()
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since >= self.away_s:
            raise error
        pause = self._pause_s * random.uniform(0.5, 1.0)  # so that clients spread
        self.sleep(self.left_s(pause))
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    def call(self, attempt: Callable[[float], T]) -> T:
        """Do `attempt`, which is given its time limit in seconds, until the tracker answers."""
        while True:
            try:
                with rpc_errors(self.address):
                    answer = attempt(self.left_s(CALL_S))
            except FarmError as error:
                if is_own_deadline(error) and self.deadline is not None:
                    self.left_s(CALL_S)  # says so if it was the caller's
                self.bear(error)
            else:
                self.answered()
                return answer

    def stream(self, attempt: Callable[[float], Stream[T]]) -> Iterator[T]:
        """Yield the messages of a stream, opened again by `attempt` whenever it breaks.

        Parameters
        ----------
        attempt
            Opens the stream where the last message left off; it is given its time limit in seconds.
        """
        while True:
            opened: Stream[T] | None = None
            try:
                with rpc_errors(self.address):
                    opened = attempt(self.left_s(STREAM_S))
                    for message in opened:
                        self.answered()
                        yield message
            except FarmError as error:
                if is_own_deadline(error):
                    self.left_s(STREAM_S)
                    self.answered()
                else:
                    self.bear(error)
            else:
                return
            finally:
                if opened is not None:
                    opened.cancel()


def is_own_deadline(error: FarmError) -> bool:
    """Tell whether a call ended because its time limit here passed, not the work's."""
    return error.details.get("grpc") == grpc.StatusCode.DEADLINE_EXCEEDED.name


def is_away(error: FarmError) -> bool:
    """Tell whether an error means that the tracker is not there now, so that the same may work later."""
    broken = (
        type(error) is InfrastructureError and error.details.get("grpc") != "RESOURCE_EXHAUSTED"
    )
    ended = error.details.get("grpc") == grpc.StatusCode.CANCELLED.name  # by a tracker that stops
    return isinstance(error, TrackerUnreachable) or broken or ended or is_own_deadline(error)


def may_mend(error: FarmError) -> bool:
    """Tell whether the same may work later: the farm failed, or its tracker is away or being stopped."""
    return error.retryable or is_away(error)
