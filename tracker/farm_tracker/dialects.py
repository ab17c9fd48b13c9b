"""What only one of the databases understands: this is the one place for it.

Owns: pragmas of SQLite, the form of an upsert, a transaction over tables, how a full disk shows. Does not
own: tables or queries.

Invariant: whatever the database, a transaction that was committed survives a crash.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, event

from farm.errors import InfrastructureError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection, Engine, Insert, Table
    from sqlalchemy.exc import DBAPIError, OperationalError

PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000")
HOLD = "SELECT pg_try_advisory_lock(1262897234, hashtext(current_schema()))"
KEEPALIVES = (
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
)
HOLD_WAIT_S, HOLD_PAUSE_S = 5.0, 0.05
"""How long the server has to notice that the tracker before this one was killed."""
_FULL = ("database or disk is full", "disk i/o error", "no space left on device")


def url_of(path: Path) -> URL:
    """Return the URL of SQLite's file at a path; as text, some letters in it would mean something else."""
    return URL.create("sqlite", database=str(path.absolute()))


def configure(engine: Engine) -> None:
    """Make every new connection durable; PostgreSQL is by its own default."""
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_pragmas)


@functools.cache
def upsert_of(table: Table, dialect: str) -> Insert:
    """Return the statement that inserts a row, or changes the one of the same key."""
    # Only the one that is used is loaded: the other would be a tenth of what a tracker needs to start.
    own = importlib.import_module(f"sqlalchemy.dialects.{dialect}")
    statement = own.insert(table)
    keys = [column.name for column in table.primary_key.columns]
    changed = {
        column.name: statement.excluded[column.name]
        for column in table.columns
        if column.name not in keys
    }
    found: Insert = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    return found


@contextlib.contextmanager
def begin_alone(connection: Connection) -> Iterator[None]:
    """Run statements, those that change tables too, in one transaction that nobody else writes beside."""
    # The driver of SQLite begins a transaction before a row is changed, not before a table is.
    is_sqlite = connection.dialect.name == "sqlite"
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_sqlite else "SELECT 1")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def hold_alone(engine: Engine) -> Connection | None:
    """Return a connection that keeps other trackers off a server's tables while it is open; None of a file.

    A file's folder is locked by its tracker.

    Raises
    ------
    InfrastructureError
        Another tracker uses them.
    """
    if engine.dialect.name != "postgresql":
        return None
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    try:
        for (
            statement
        ) in KEEPALIVES:  # so that the server soon notices a tracker whose machine is gone
            connection.exec_driver_sql(statement)
        _wait_for_hold(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _wait_for_hold(connection: Connection) -> None:
    until = time.monotonic() + HOLD_WAIT_S
    while not connection.exec_driver_sql(HOLD).scalar():
        if time.monotonic() >= until:
            where = connection.engine.url.set(query={}).render_as_string()
            raise InfrastructureError(
                f"store {where}: another tracker uses it; stop that one, or name another database"
            )
        time.sleep(HOLD_PAUSE_S)


def is_full(error: OperationalError) -> bool:
    """Tell whether a write failed for want of space (SQLite says I/O error when its log cannot grow)."""
    return any(text in str(error.orig).lower() for text in _FULL)


def unreadable(engine: Engine, error: DBAPIError) -> InfrastructureError:
    """Return what to tell of a database that cannot be opened; no password of its URL is in it."""
    where = (
        engine.url.database
        if engine.dialect.name == "sqlite"
        else engine.url.set(query={}).render_as_string()  # the options may hold a password too
    )
    return InfrastructureError(
        f"store {where}: cannot be read ({str(error.orig).strip()[:200]}); restore it from a copy, correct its "
        "rights, or use another data folder"
    )


def _set_pragmas(connection: Any, _record: Any) -> None:  # noqa: ANN401 - SQLAlchemy's event
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
