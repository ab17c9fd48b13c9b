"""The durable part of the state: SQLite, or PostgreSQL, behind SQLAlchemy Core.

Owns: writing the changes of steps in one transaction, loading at start, looking up the build cache, the reserve that
lets results commit on a full disk. Does not own: the tables (`tables`), blobs (`cas`) or what the values mean.

Invariant: what `write` returned from survives a crash; epochs in the store never go back. All calls but
`check_room` block and come from one thread at a time. What only one of the databases understands is in `dialects`.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import create_engine, func, select, tuple_
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import StaticPool

from farm.core.files import private_file
from farm.errors import InfrastructureError
from farm_tracker import rows, run_rows
from farm_tracker.crash_points import POINTS
from farm_tracker.dialects import (
    configure,
    hold_alone,
    is_full,
    unreadable,
    upsert_of,
    url_of,
)
from farm_tracker.migrations import bring_up_to_date
from farm_tracker.reserve import Reserve
from farm_tracker.state.model import LIVE_LEASES, NO_EPOCH
from farm_tracker.state.state import Changes
from farm_tracker.state.work import OPEN_JOBS, AttemptState
from farm_tracker.tables import (
    accounts,
    action_cache,
    agents,
    attempts,
    builds,
    counters,
    devices,
    jobs,
    leases,
    metadata,
    notes,
    run_attempts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Engine, Table

    from farm_tracker.rows import Row
    from farm_tracker.state.account import Account
    from farm_tracker.state.model import Agent, Device, Lease
    from farm_tracker.state.notes import Note
    from farm_tracker.state.run import RunAttempt, RunJob
    from farm_tracker.state.work import BuildUnit, CacheEntry, UnitSpec

V = TypeVar("V")

LOOKUP_BATCH = 200
NOTES_KEPT = 10_000
NOTES_PRUNED_BY = 500
PRUNED_AT_ONCE = 500
READ_AT_ONCE = 1000
_OPEN_BUILDS = [str(it) for it in OPEN_JOBS]
_EPOCH_FLOOR = "epoch_floor"
_CACHE_KEY = tuple(action_cache.primary_key.columns)


_SECRET = re.compile(r"://(.*@)?([^?]*)(\?.*)?", re.DOTALL)
"""User and password in a URL, and its options, where a password may stand as well."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a former run left: agents, devices, the leases that it had given out, and every job that it knew."""

    agents: tuple[Agent, ...]
    devices: tuple[Device, ...]
    leases: tuple[Lease, ...]
    ended_jobs: int
    run_jobs: tuple[RunJob, ...] = ()
    run_attempts: tuple[RunAttempt, ...] = ()
    accounts: tuple[Account, ...] = ()
    notes: tuple[Note, ...] = ()
    epoch_floor: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """Changes with the rows that they need beside them."""

    changes: Changes
    units: dict[str, BuildUnit]


class Store:
    """The tracker's database: one file, or what a database URL names.

    Parameters
    ----------
    where
        Path of the SQLite file, or a URL of SQLAlchemy such as ``postgresql+psycopg://HOST/NAME``.
    reserve_bytes
        Size of the file that is kept beside a SQLite file, to be given up when the disk is full; 0: none.
    """

    def __init__(self, where: Path | str, reserve_bytes: int = 0) -> None:
        url = url_of(where) if isinstance(where, Path) else where
        options: dict[str, Any] = {}
        if str(url).startswith("sqlite"):
            options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        try:
            self._engine: Engine = create_engine(url, **options)
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            raise InfrastructureError(
                f"store {_shown(str(where))}: cannot be opened ({error}); use postgresql+psycopg://HOST/NAME and "
                "install kernel-farm[postgresql]"
            ) from error
        self._used: dict[tuple[Any, ...], float] = {}
        self._reserve: Reserve | None = None
        if isinstance(where, Path) and reserve_bytes:
            self._reserve = Reserve(where.with_name(where.name + ".reserve"), reserve_bytes)
        if isinstance(where, Path):
            _hide(where)
        configure(self._engine)
        self._hold: Connection | None = None
        try:
            self._hold = hold_alone(self._engine)
            bring_up_to_date(self._engine, _shown(str(where)))
        except DBAPIError as error:
            self.close()
            raise unreadable(self._engine, error) from error
        except BaseException:
            self.close()
            raise
        if self._reserve is not None:
            self._reserve.take_at_start()

    def close(self) -> None:
        """Close the file, or let go of the server."""
        if self._hold is not None:
            self._hold.close()
        self._engine.dispose()

    def check_room(self) -> None:
        """Raise StoreFull if nothing new should be promised, since its disk is (nearly) full. Quick."""
        if self._reserve is not None:
            self._reserve.check()

    def write(self, stored: StoredChanges, now: float, wall: float) -> None:
        """Write everything durable among the changes in one transaction.

        On a full disk the reserve is given up, so that what was promised can still be kept.

        Raises
        ------
        sqlalchemy.exc.SQLAlchemyError
            The file cannot be written; nothing of it was.
        """
        try:
            self._write(stored, now, wall)
        except OperationalError as error:
            if self._reserve is None or not is_full(error) or not self._reserve.give_up():
                raise
            self._write(stored, now, wall)

    def _write(self, stored: StoredChanges, now: float, wall: float) -> None:
        changes = stored.changes
        with self._engine.begin() as connection:
            POINTS.passed("commit.begun")
            _upsert(connection, agents, [rows.agent_row(it) for it in _present(changes.agents)])
            known = [rows.device_row(it, now, wall) for it in _present(changes.devices)]
            _upsert(connection, devices, known)
            if changes.epoch_floor:
                floor = {"name": _EPOCH_FLOOR, "value": changes.epoch_floor}
                _upsert(connection, counters, [floor])
            granted = [it for it in _present(changes.leases) if it.epoch]
            _upsert(connection, leases, [rows.lease_row(it, now, wall) for it in granted])
            _upsert(connection, builds, [rows.job_row(it, wall) for it in _present(changes.jobs)])
            tried = [
                rows.attempt_row(it, stored.units[it.unit_id], wall)
                for it in _present(changes.attempts)
            ]
            _upsert(connection, attempts, tried)
            _upsert(connection, action_cache, [rows.cache_row(it, wall) for it in changes.cached])
            _write_runs(connection, changes, now, wall)
            _forget(connection, changes)
            POINTS.passed("commit.written")
        POINTS.passed("commit.done")

    def load(self, now: float, wall: float) -> Loaded:
        """Return what survives a restart, and end what does not.

        Builds end with the tracker that ran them: their clients' calls broke. Run jobs go on.
        """
        with self._engine.begin() as connection:
            cause = {"cause": "the tracker was restarted", "changed_wall": wall}
            ended = connection.execute(
                builds.update()
                .where(builds.c.state.in_(_OPEN_BUILDS))
                .values(state="CANCELLED", **cause)
            )
            connection.execute(
                attempts.update()
                .where(attempts.c.state == str(AttemptState.BUILDING))
                .values(state=str(AttemptState.LOST), changed_wall=wall)
            )
            is_live = leases.c.state.in_([str(it) for it in LIVE_LEASES])
            connection.execute(leases.delete().where(~is_live))
            live = select(leases).where(is_live)
            waiting = select(jobs).order_by(jobs.c.queued_wall, jobs.c.job_id)
            newest = select(notes).order_by(notes.c.number.desc()).limit(NOTES_KEPT)
            floor = select(counters.c.value).where(counters.c.name == _EPOCH_FLOOR)
            told = [rows.note_of(row, now, wall) for row in _all(connection, newest)]
            return Loaded(
                tuple(rows.agent_of(row, now) for row in _all(connection, select(agents))),
                tuple(rows.device_of(row, now, wall) for row in _all(connection, select(devices))),
                tuple(rows.lease_of(row, now, wall) for row in _all(connection, live)),
                ended.rowcount,
                tuple(run_rows.job_of(row, now, wall) for row in _all(connection, waiting)),
                tuple(
                    run_rows.attempt_of(row, now, wall)
                    for row in _all(connection, select(run_attempts))
                ),
                tuple(
                    rows.account_of(row, now, wall) for row in _all(connection, select(accounts))
                ),
                tuple(reversed(told)),
                connection.execute(floor).scalar() or NO_EPOCH,
            )

    def lookup(self, specs: Sequence[UnitSpec], wall: float) -> list[CacheEntry]:
        """Return every entry of the build cache for these units, whoever built it, newest first; they were used now."""
        found: list[CacheEntry] = []
        key = tuple_(
            action_cache.c.kind,
            action_cache.c.target_id,
            action_cache.c.symbol,
            action_cache.c.function_sha256,
        )
        by_key = {(str(it.kind), it.target_id, it.symbol, it.function.sha256): it for it in specs}
        keys = list(by_key)
        with self._engine.begin() as connection:
            for start in range(0, len(keys), LOOKUP_BATCH):
                wanted = key.in_(keys[start : start + LOOKUP_BATCH])
                newest = action_cache.c.stored_wall.desc()
                for row in _all(connection, select(action_cache).where(wanted).order_by(newest)):
                    spec = by_key[
                        row["kind"], row["target_id"], row["symbol"], row["function_sha256"]
                    ]
                    found.append(rows.entry_of(row, spec))
                    self._used[tuple(row[it.name] for it in _CACHE_KEY)] = wall
        return found

    def prune(self, wall: float, records_s: float) -> int:
        """Delete some rows that ended, or were used, more than `records_s` ago; return how many, 0 if all are gone.

        One small transaction, with the use of cached modules since the last one.
        """
        before = wall - records_s
        used, self._used = self._used, {}
        with self._engine.begin() as connection:
            for key, used_wall in used.items():
                same = (column == value for column, value in zip(_CACHE_KEY, key, strict=True))
                connection.execute(action_cache.update().where(*same).values(used_wall=used_wall))
            return sum(
                _delete_some(connection, table, is_old)
                for table, is_old in (
                    (builds, (builds.c.changed_wall < before) & ~builds.c.state.in_(_OPEN_BUILDS)),
                    (
                        attempts,
                        (attempts.c.changed_wall < before)
                        & (attempts.c.state != str(AttemptState.BUILDING)),
                    ),
                    (action_cache, action_cache.c.used_wall < before),
                    (notes, notes.c.at_wall < before),
                )
            )

    def counts(self) -> dict[str, int]:
        """Return how many rows each table has."""
        with self._engine.begin() as connection:
            return {
                name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
                for name, table in metadata.tables.items()
            }


def _write_runs(connection: Connection, changes: Changes, now: float, wall: float) -> None:
    changed = [run_rows.job_row(it, now, wall) for it in _present(changes.run_jobs)]
    _upsert(connection, jobs, changed)
    tried = [run_rows.attempt_row(it, now, wall) for it in _present(changes.run_attempts)]
    _upsert(connection, run_attempts, tried)
    used = [rows.account_row(it, now, wall) for it in _present(changes.accounts)]
    _upsert(connection, accounts, used)
    if changes.notes:
        _upsert(connection, notes, [rows.note_row(it, now, wall) for it in changes.notes])
        first, last = changes.notes[0].number, changes.notes[-1].number
        if first // NOTES_PRUNED_BY != (last + 1) // NOTES_PRUNED_BY:
            connection.execute(notes.delete().where(notes.c.number <= last - NOTES_KEPT))


def _forget(connection: Connection, changes: Changes) -> None:
    """Delete the rows of what the state has forgotten."""
    for table, forgotten in (
        (agents, changes.agents),
        (devices, changes.devices),
        (leases, changes.leases),
        (jobs, changes.run_jobs),
        (run_attempts, changes.run_attempts),
        (accounts, changes.accounts),
    ):
        (key,) = table.primary_key.columns
        absent = _absent(forgotten)
        for start in range(0, len(absent), LOOKUP_BATCH):
            connection.execute(table.delete().where(key.in_(absent[start : start + LOOKUP_BATCH])))


def _delete_some(connection: Connection, table: Table, is_old: ColumnElement[bool]) -> int:
    """Delete at most `PRUNED_AT_ONCE` rows."""
    keys = list(table.primary_key.columns)
    some = select(*keys).where(is_old).limit(PRUNED_AT_ONCE)
    found = [tuple(row) for row in connection.execute(some)]
    for start in range(0, len(found), LOOKUP_BATCH):
        batch = tuple_(*keys).in_(found[start : start + LOOKUP_BATCH])
        connection.execute(table.delete().where(batch))
    return len(found)


def _hide(path: Path) -> None:
    """Let no other user read the database; the files that SQLite makes beside it get its rights."""
    try:
        private_file(path)
        for end in ("-wal", "-shm"):  # of a tracker that was killed
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + end).chmod(0o600)
    except OSError as error:
        raise InfrastructureError(
            f"store {path}: cannot be opened ({error.strerror}); correct its rights, or choose another folder"
        ) from error


def _upsert(connection: Connection, table: Table, values: list[dict[str, Any]]) -> None:
    if values:
        connection.execute(upsert_of(table, connection.dialect.name), values)


def _all(connection: Connection, query: Any) -> Iterator[Row]:  # noqa: ANN401 - queries are dynamic
    """Yield rows a thousand at a time, since a hundred thousand at once are most of the memory of a start."""
    result = connection.execute(query.execution_options(yield_per=READ_AT_ONCE))
    names = tuple(result.keys())
    for some in result.partitions():
        for row in some:
            yield dict(zip(names, row, strict=True))  # looked at in a third of the time of the row


def _present(table: Mapping[Any, V | None]) -> list[V]:
    return [value for value in table.values() if value is not None]


def _absent(table: Mapping[Any, Any]) -> list[Any]:
    return [key for key, value in table.items() if value is None]


def _shown(where: str) -> str:
    """Return a path or URL as it may be shown: without whatever may be a password."""
    return _SECRET.sub(lambda it: f"://{'***@' if it[1] else ''}{it[2]}", where)[:200]
