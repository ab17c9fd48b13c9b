"""The durable part of the state: SQLite behind SQLAlchemy Core.

Owns: the tables, writing the changes of steps in one transaction, loading at start, looking up the build cache.
Does not own: blobs (`cas`) or what the values mean.

Invariant: what `write` returned from survives a crash; epochs in the store never go back. All calls block and come
from one thread at a time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    select,
    tuple_,
)
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.pool import StaticPool

from farm.errors import InfrastructureError
from farm_tracker import rows
from farm_tracker.state.model import LIVE_LEASES
from farm_tracker.state.state import Changes
from farm_tracker.state.work import OPEN_JOBS, AttemptState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sqlalchemy import Connection, Engine

    from farm_tracker.state.model import Agent, Device, Lease
    from farm_tracker.state.work import BuildUnit, CacheEntry, UnitSpec

V = TypeVar("V")

SCHEMA_VERSION = 1
LOOKUP_BATCH = 200

metadata = MetaData()

meta = Table("meta", metadata, Column("name", String, primary_key=True), Column("value", String))
agents = Table(
    "agents",
    metadata,
    Column("agent_id", String, primary_key=True),
    Column("instance_id", String, nullable=False),
    Column("former_instances", String, nullable=False),
    Column("version", String, nullable=False),
    Column("builds", String, nullable=False),
    Column("build_slots", Integer, nullable=False),
    Column("hosted_by", String, nullable=False),
    Column("host", String, nullable=False),
    Column("device_ids", String, nullable=False),
)
devices = Table(
    "devices",
    metadata,
    Column("device_id", String, primary_key=True),
    Column("agent_id", String, nullable=False),
    Column("description", String, nullable=False),
    Column("admin", String, nullable=False),
    Column("epoch", Integer, nullable=False),
)
leases = Table(
    "leases",
    metadata,
    Column("lease_id", String, primary_key=True),
    Column("selector", String, nullable=False),
    Column("holder", String, nullable=False),
    Column("ttl_s", Float, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("device_id", String, nullable=False),
    Column("agent_id", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("expires_wall", Float, nullable=False),
    Column("cause", String, nullable=False),
    Column("changed_wall", Float, nullable=False),
)
builds = Table(
    "builds",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("request_key", String, nullable=False),
    Column("target_host", String, nullable=False),
    Column("unit_ids", String, nullable=False),
    Column("keep_going", Boolean, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("artifact", String, nullable=False),
    Column("cause", String, nullable=False),
    Column("changed_wall", Float, nullable=False),
)
attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("unit_id", String, nullable=False),
    Column("unit", String, nullable=False),
    Column("agent_id", String, nullable=False),
    Column("instance_id", String, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("failure", String, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("changed_wall", Float, nullable=False),
)
action_cache = Table(
    "action_cache",
    metadata,
    Column("kind", String, primary_key=True),
    Column("target_id", String, primary_key=True),
    Column("symbol", String, primary_key=True),
    Column("function_sha256", String, primary_key=True),
    Column("builder_version", String, primary_key=True),
    Column("toolchain", String, primary_key=True),
    Column("target", String, nullable=False),
    Column("module", String, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("stored_wall", Float, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a former run left: agents, devices, and the leases that it had given out."""

    agents: tuple[Agent, ...]
    devices: tuple[Device, ...]
    leases: tuple[Lease, ...]
    ended_jobs: int


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """Changes with the rows that they need beside them."""

    changes: Changes
    units: dict[str, BuildUnit]


class Store:
    """The tracker's database in one file."""

    def __init__(self, path: Path) -> None:
        self._engine: Engine = create_engine(
            f"sqlite:///{path}", poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        event.listen(self._engine, "connect", _configure)
        metadata.create_all(self._engine)
        with self._engine.begin() as connection:
            _check_version(connection, path)

    def close(self) -> None:
        """Close the file."""
        self._engine.dispose()

    def write(self, stored: StoredChanges, now: float, wall: float) -> None:
        """Write everything durable among the changes in one transaction.

        Raises
        ------
        sqlalchemy.exc.SQLAlchemyError
            The file cannot be written; nothing of it was.
        """
        changes = stored.changes
        with self._engine.begin() as connection:
            _upsert(connection, agents, [rows.agent_row(it) for it in _present(changes.agents)])
            _upsert(connection, devices, [rows.device_row(it) for it in _present(changes.devices)])
            granted = [it for it in _present(changes.leases) if it.epoch]
            _upsert(connection, leases, [rows.lease_row(it, now, wall) for it in granted])
            _upsert(connection, builds, [rows.job_row(it, wall) for it in _present(changes.jobs)])
            tried = [
                rows.attempt_row(it, stored.units[it.unit_id], wall)
                for it in _present(changes.attempts)
            ]
            _upsert(connection, attempts, tried)
            _upsert(connection, action_cache, [rows.cache_row(it, wall) for it in changes.cached])
            for agent_id in _absent(changes.agents):
                connection.execute(agents.delete().where(agents.c.agent_id == agent_id))

    def load(self, now: float, wall: float) -> Loaded:
        """Return what survives a restart, and end what does not.

        Jobs end with the tracker that ran them: their clients' calls broke.
        """
        with self._engine.begin() as connection:
            cause = {"cause": "the tracker was restarted", "changed_wall": wall}
            ended = connection.execute(
                builds.update()
                .where(builds.c.state.in_([str(it) for it in OPEN_JOBS]))
                .values(state="CANCELLED", **cause)
            )
            connection.execute(
                attempts.update()
                .where(attempts.c.state == str(AttemptState.BUILDING))
                .values(state=str(AttemptState.LOST), changed_wall=wall)
            )
            live = select(leases).where(leases.c.state.in_([str(it) for it in LIVE_LEASES]))
            return Loaded(
                tuple(rows.agent_of(row, now) for row in _all(connection, select(agents))),
                tuple(rows.device_of(row) for row in _all(connection, select(devices))),
                tuple(rows.lease_of(row, now, wall) for row in _all(connection, live)),
                ended.rowcount,
            )

    def lookup(self, specs: Sequence[UnitSpec]) -> list[CacheEntry]:
        """Return every entry of the build cache for these units, whoever built it, newest first."""
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
        return found

    def counts(self) -> dict[str, int]:
        """Return how many rows each table has."""
        with self._engine.begin() as connection:
            return {
                name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
                for name, table in metadata.tables.items()
            }


def _configure(connection: Any, _record: Any) -> None:  # noqa: ANN401 - SQLAlchemy's event
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _check_version(connection: Connection, path: Path) -> None:
    found = connection.execute(select(meta.c.value).where(meta.c.name == "schema")).scalar()
    if found is None:
        connection.execute(meta.insert().values(name="schema", value=str(SCHEMA_VERSION)))
    elif found != str(SCHEMA_VERSION):
        raise InfrastructureError(
            f"store {path}: written by another version (schema {found}, this one reads "
            f"{SCHEMA_VERSION}); use that version or another data folder"
        )


def _upsert(connection: Connection, table: Table, values: list[dict[str, Any]]) -> None:
    if values:
        connection.execute(_upsert_of(table), values)


@functools.cache
def _upsert_of(table: Table) -> Insert:
    statement = insert(table)
    keys = [column.name for column in table.primary_key.columns]
    changed = {
        column.name: statement.excluded[column.name]
        for column in table.columns
        if column.name not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def _all(connection: Connection, query: Any) -> list[Any]:  # noqa: ANN401 - rows are dynamic
    return list(connection.execute(query).mappings())


def _present(table: Mapping[Any, V | None]) -> list[V]:
    return [value for value in table.values() if value is not None]


def _absent(table: Mapping[Any, Any]) -> list[Any]:
    return [key for key, value in table.items() if value is None]
