"""Group commit in the simulated tracker: steps reach the disk in batches, their commands follow.

Owns: the order of writing and carrying out, the crash points around it. `Commits` stands for
`farm_tracker.commits.Commits` (group commit by one writer). Does not own: which part of a step is durable (the real
code), the disk, or what commands do.

Invariant: no command is carried out before its step and all before it are on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm_tracker import commits as real_commits

from simulation.plan import CRASH_POINTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from farm_tracker.state.commands import Command
    from farm_tracker.store import StoredChanges

    from farm.errors import FarmError
    from simulation.tracker import Tracker

BEFORE, AFTER, BETWEEN = CRASH_POINTS


@dataclass(slots=True)
class Entry:
    """One step on its way to the disk."""

    stored: StoredChanges | None
    commands: tuple[Command, ...]
    done: Callable[[FarmError | None], None] | None


class Commits:
    """Group commit as the real one does it, on the virtual clock."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._pending: list[Entry] = []
        self._running = False

    def add(self, entry: Entry) -> None:
        """Take a step; its commands follow once it and all before it are stored."""
        if entry.stored is None and not self._running:
            self._perform(entry)
            return
        self._pending.append(entry)
        if not self._running:
            self._running = True
            self._tracker.later(0.0, self._write)

    def _write(self) -> None:
        batch, self._pending = self._pending, []
        world = self._tracker.world
        slow = world.chance(0.02)
        wait_s = world.between(0.05, 1.0) if slow else world.between(0.001, 0.008)
        self._tracker.later(wait_s, self._commit, batch)

    def _commit(self, batch: list[Entry]) -> None:
        tracker = self._tracker
        stored = [it.stored for it in batch if it.stored is not None]
        if stored:
            if tracker.crashes_at(BEFORE):
                return
            try:
                tracker.write(real_commits._merged(stored))
            except OSError as error:
                tracker.fail(f"the store cannot be written ({error})")
                return
            if tracker.crashes_at(AFTER):
                return
        for entry in batch:
            self._perform(entry)
            if not tracker.is_alive:
                return
        if self._pending:
            self._write()
        else:
            self._running = False

    def _perform(self, entry: Entry) -> None:
        for index, command in enumerate(entry.commands):
            if index and self._tracker.crashes_at(BETWEEN):
                return
            self._tracker.carry_out(command)
        if entry.done is not None:
            entry.done(None)
