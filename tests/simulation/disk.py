"""The tracker's disk: exactly what survives its crash.

Owns: what was written, and loading it. Does not own: which part of a step is durable (`commits.durable_part`) or the
form of a row: both are the tracker's own code.

A write is kept as values and goes through the real `farm_tracker.store.Store` (SQLite in memory) when a restarted
tracker loads; until then later values of an entity replace earlier ones, as they would in the table. Writes on the
two sides of a jump of the clocks are kept apart, since rows hold wall time.

Invariant: `load` sees all writes that returned and nothing else.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from farm_tracker.state.state import Changes
from farm_tracker.store import Store, StoredChanges
from farm_tracker.tables import metadata

from farm.errors import StoreFull

if TYPE_CHECKING:
    from farm_tracker.store import Loaded

SKEW_S = 1e-6
RESERVE_WRITES = 25
"""How many writes the reserve of the real store is taken for (`farm_tracker.reserve`)."""


class _Database:
    """One real store in memory for the whole process, emptied for each farm: opening one is slow."""

    store: Store | None = None
    owner: Disk | None = None

    nothing: Loaded | None = None

    @classmethod
    def empty(cls, now: float, wall: float) -> Loaded:
        """Return what a store gives in which nothing was ever written; no field of it depends on the time."""
        if cls.nothing is None:
            cls.nothing = cls.of(Disk()).load(now, wall)
        return cls.nothing

    @classmethod
    def of(cls, disk: Disk) -> Store:
        if cls.store is None:
            cls.store = Store("sqlite://")
        if cls.owner is not disk:
            with cls.store._engine.begin() as connection:
                for table in metadata.tables.values():
                    if table.name != "meta":
                        connection.execute(table.delete())
            cls.owner = disk
        return cls.store


class Disk:
    """What one tracker has stored."""

    def __init__(self) -> None:
        self.is_full = False
        self.reserve = RESERVE_WRITES
        self.writes = 0
        self.truth = Changes()
        self._pending: list[tuple[StoredChanges, float, float]] = []

    def write(self, stored: StoredChanges, now: float, wall: float) -> None:
        """Store in one transaction. Raises OSError if the disk is full; nothing is stored then."""
        if self.is_full:
            self.reserve -= 1
        if self.reserve < 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        self.writes += 1
        self.truth.merge(stored.changes)
        if self._pending and abs((wall - now) - self._skew()) < SKEW_S:
            last, _, _ = self._pending[-1]
            last.changes.merge(stored.changes)
            last.units.update(stored.units)
            self._pending[-1] = (last, now, wall)
        else:
            fresh = StoredChanges(Changes(), dict(stored.units))
            fresh.changes.merge(stored.changes)
            self._pending.append((fresh, now, wall))

    def check_room(self) -> None:
        """Raise StoreFull if nothing new should be promised."""
        if self.is_full:
            raise StoreFull("tracker: its disk is full; free space and submit again")

    def mend(self) -> None:
        """Make room."""
        self.is_full = False
        self.reserve = RESERVE_WRITES

    def load(self, now: float, wall: float) -> Loaded:
        """Return what the real store makes of everything written."""
        if self.reserve < 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        if not self.writes:
            return _Database.empty(now, wall)
        store = _Database.of(self)
        for stored, then, then_wall in self._pending:
            store.write(stored, then, then_wall)
        self._pending = []
        return store.load(now, wall)

    def _skew(self) -> float:
        _, now, wall = self._pending[-1]
        return wall - now
