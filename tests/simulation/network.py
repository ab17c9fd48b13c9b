"""Connections between processes: what may happen to a message on its way.

Owns: latency, cuts in either direction, streams that break with each end noticing at its own time.
Does not own: what messages mean.

A stream stands for one gRPC stream over TCP: ordered and free of duplicates until it breaks, after which a message
that was under way arrives or does not. Messages of two streams overtake each other freely. A cut holds messages back
(TCP sends them again) until it ends or the keepalive of an end gives the stream up.

Invariant: a direction of a stream never reorders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.world import Timer, World

UP, DOWN = 0, 1
KEEPALIVE_S = (4.0, 14.0)
"""How long after the last sign of life an end gives a stream up (the real one: 10 s and 5 s for the answer)."""


class Path:
    """The way between one agent's host (or client) and the tracker."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.cut = [False, False]
        self.delay_s = 0.0
        self.streams: list[Stream] = []

    def latency_s(self) -> float:
        """Return how long one message takes now: mostly a millisecond, at times much longer."""
        world = self.world
        if world.chance(0.03):
            return world.between(0.05, 1.5) + self.delay_s
        return world.between(0.0003, 0.01) + self.delay_s

    def set_cut(self, up: bool, down: bool) -> None:
        """Cut or mend the directions; what was held back goes on."""
        self.cut = [up, down]
        for stream in list(self.streams):
            stream.cut_changed()


class Stream:
    """One stream: `receive[UP]` is the tracker's end, `receive[DOWN]` the agent's.

    Parameters
    ----------
    receive
        What each end does with a message.
    broken
        What each end does when it notices that the stream is gone.
    """

    def __init__(
        self,
        path: Path,
        receive: tuple[Callable[[Any], None], Callable[[Any], None]],
        broken: tuple[Callable[[], None], Callable[[], None]],
    ) -> None:
        self.path = path
        self.world = path.world
        self._receive = receive
        self._broken = broken
        self._last = [0.0, 0.0]
        self._held: list[list[Any]] = [[], []]
        self._gone = [False, False]
        self._lost = [False, False]
        self._doubt: list[Timer | None] = [None, None]
        self.in_flight = [0, 0]
        path.streams.append(self)
        if any(path.cut):
            self.cut_changed()

    def send(self, direction: int, message: object) -> None:
        """Send; it arrives after everything sent before, or never."""
        at = max(self._last[direction], self.world.now + self.path.latency_s())
        self._last[direction] = at
        self.in_flight[direction] += 1
        self.world.later(at - self.world.now, self._arrive, direction, message)

    def close(self, end: int) -> None:
        """Let `end` (UP: the tracker's) leave; the other notices after what was under way."""
        if self._gone[end]:
            return
        self._leave(end)
        self.send(1 - end, None)

    def snap(self, *, lose: bool) -> None:
        """Break the connection itself; each end notices at its own time, what is under way may be lost."""
        for end in (UP, DOWN):
            self._lost[end] = self._lost[end] or lose
            self.world.later(self.world.between(0.0, 2.0), self._notice, end)

    def cut_changed(self) -> None:
        """Deliver what was held back if the way is free again; let both ends doubt if not."""
        for direction in (UP, DOWN):
            if not self.path.cut[direction]:
                held, self._held[direction] = self._held[direction], []
                for message in held:
                    self._deliver(direction, message)
        for end in (UP, DOWN):
            doubt = self._doubt[end]
            if any(self.path.cut) and doubt is None:
                wait_s = self.world.between(*KEEPALIVE_S)
                self._doubt[end] = self.world.later(wait_s, self._notice, end)
            elif doubt is not None and not any(self.path.cut):
                doubt.cancel()
                self._doubt[end] = None

    def _arrive(self, direction: int, message: object) -> None:
        if self.path.cut[direction]:
            self._held[direction].append(message)
        else:
            self._deliver(direction, message)

    def _deliver(self, direction: int, message: object) -> None:
        self.in_flight[direction] -= 1
        if self._lost[direction]:
            return
        if self._gone[direction]:  # nobody is there any more: the sender is told
            self.world.later(self.path.latency_s(), self._notice, 1 - direction)
        elif message is None:
            self._notice(direction)
        else:
            self._receive[direction](message)

    def _notice(self, end: int) -> None:
        if not self._gone[end]:
            self._leave(end)
            self._broken[end]()

    def _leave(self, end: int) -> None:
        self._gone[end] = True
        if all(self._gone) and self in self.path.streams:
            self.path.streams.remove(self)
