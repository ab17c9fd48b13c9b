"""The database of records: SQLite, shared by any number of users and processes.

Owns: the tables, their version, opening, appending and looking up. Does not own: what a record says (`record`).

Invariant: append-only, which the database itself keeps; what `add` returned from survives a crash. Readers never wait,
writers wait for each other, and nobody is told that the database is locked unless somebody holds it for minutes.

Version history of the tables: 1 - first; 2 - decisions say which ones they replace.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, OperationalError

from farm.core.files import regular_size
from farm.errors import InfrastructureError, InvalidInput
from farm.tune.records.record import Key, Outcome, Record, Workload, canonical
from farm.tune.records.standing import open_decisions, standing, when
from farm.tune.records.winner import Winner

if TYPE_CHECKING:
    from farm.ir import Function
    from farm.target import Target

T = TypeVar("T")

VERSION = 2
APPLICATION_ID = 0x4B46_5243
"""Marks a SQLite file as a database of records."""
WAIT_S = 60.0
BATCH = 500

_HEAD = b"SQLite format 3\0"
_READS = "reads"
"""Option of connections that only read."""

metadata = sa.MetaData()
_KEY = ("workload", "target", "host", "cache", "toolchain")


def _table(name: str, *columns: sa.Column[Any]) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        *(sa.Column(each, sa.String, nullable=False) for each in _KEY),
        sa.Column("template", sa.String, nullable=False),
        sa.Column("configuration", sa.String, nullable=False),
        sa.Column("value", sa.Float),
        sa.Column("wall", sa.Float, nullable=False),
        *columns,
        sa.Column("plain", sa.String, nullable=False),
        sa.Index(f"ix_{name}_key", *_KEY),
    )


workloads = sa.Table(
    "workloads",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("code", sa.LargeBinary, nullable=False),
)
records = _table(
    "records",
    sa.Column("outcome", sa.String, nullable=False),
    sa.Column("device_id", sa.String, nullable=False),
    sa.Column("run", sa.String, nullable=False),
)
winners = _table("winners")


class Records:
    """A database of records; use it as a context manager. Threads may share it, processes may open it at once.

    Parameters
    ----------
    path
        The file; a new one is made. Its folder also holds ``-wal`` and ``-shm`` while it is open. One that may only be
        read, or stands in a folder that may, is read as it is.
    create
        Whether a missing file is made.

    Raises
    ------
    InvalidInput
        It is no database of records, is damaged, a newer kernel-farm wrote it, or it is missing and `create` is false.
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = Path(path)
        if not create and not self.path.is_file():
            raise InvalidInput(f"records {self.path}: no such file; name one that exists")
        if not self.path.absolute().parent.is_dir():
            raise InvalidInput(f"records {self.path}: its folder does not exist; create it")
        _check_file(self.path)
        self._is_shown_only = self.path.exists() and not (
            os.access(self.path, os.W_OK) and os.access(self.path.absolute().parent, os.W_OK)
        )
        url = _url(self.path.absolute(), shown_only=self._is_shown_only)
        self._engine = sa.create_engine(url, connect_args={"timeout": WAIT_S})
        sa.event.listen(self._engine, "connect", _free if self._is_shown_only else _prepare)
        sa.event.listen(self._engine, "begin", _begin)
        self._reading = self._engine.execution_options(**{_READS: True})
        if self._is_shown_only:
            self._engine = self._reading
        try:
            self._patient(self._open)
        except BaseException:
            self._engine.dispose()
            raise

    def add(
        self,
        found: Iterable[Record] = (),
        *,
        workloads_: Iterable[Workload] = (),
        winners_: Iterable[Winner] = (),
    ) -> int:
        """Append, in one transaction; what is there already is left out. Returns how many records were new."""
        known = [{"id": each.id, "name": each.name, "code": each.code} for each in workloads_]
        rows = [
            _row(each, outcome=each.outcome.value, device_id=each.device_id, run=each.run)
            for each in found
        ]
        decided = [_row(each) for each in winners_]

        def write() -> int:
            with self._engine.begin() as connection:
                count = 0
                for table, batch in ((workloads, known), (records, rows), (winners, decided)):
                    for start in range(0, len(batch), BATCH):
                        statement = sa.insert(table).prefix_with("OR IGNORE")
                        done = connection.execute(statement, batch[start : start + BATCH])
                        count += done.rowcount if table is records else 0
                return count

        return self._patient(write)

    def workloads(self) -> list[Workload]:
        """Return all workloads, by name."""
        query = sa.select(workloads).order_by(workloads.c.name, workloads.c.id)
        return [Workload(row.name, row.code) for row in self._rows(query)]

    def find(
        self,
        *,
        workload: str | None = None,
        target: str | None = None,
        host: str | None = None,
        cache: str | None = None,
        toolchain: str | None = None,
        template: str | None = None,
        outcome: Outcome | None = None,
    ) -> Iterator[Record]:
        """Yield records in the order recorded, those that have all that is given."""
        conditions = _conditions(
            records,
            workload=workload,
            target=target,
            host=host,
            cache=cache,
            toolchain=toolchain,
            template=template,
            outcome=None if outcome is None else outcome.value,
        )
        query = sa.select(records.c.plain).where(*conditions).order_by(records.c.number)
        for row in self._rows(query):
            yield Record.from_plain(json.loads(row.plain))

    def under(self, key: Key, template: str | None = None) -> list[Record]:
        """Return the records of a key, in the order recorded."""
        return list(
            self.find(
                workload=key.workload,
                target=key.target,
                host=key.host,
                cache=key.cache,
                toolchain=key.toolchain,
                template=template,
            )
        )

    def winners(self, **given: str | None) -> Iterator[Winner]:
        """Yield decisions in the order taken; `given` are fields of `Key`."""
        query = sa.select(winners.c.plain).where(*_conditions(winners, **given))
        for row in self._rows(query.order_by(winners.c.number)):
            yield Winner.from_plain(json.loads(row.plain))

    def best(
        self, workload: str, target: str, *, host: str | None = None, cache: str | None = None
    ) -> Winner | None:
        """Return the decision that stands for a workload on a target (`standing`); None if there is none.

        Parameters
        ----------
        host, cache
            None: of whichever key's was taken last, since values of several keys cannot be compared.
        """
        decided = self.standing(workload=workload, target=target, host=host, cache=cache)
        return max(decided.values(), key=when, default=None)

    def standing(self, **given: str | None) -> dict[Key, Winner]:
        """Return the decision that stands under each key; `given` as for `winners`."""
        return standing(self.winners(**given))

    def open_decisions(self, **given: str | None) -> list[Winner]:
        """Return the decisions that no other replaced, oldest first; `given` as for `winners`."""
        return open_decisions(self.winners(**given))

    def quarantined(self, workload: str, target: str) -> set[str]:
        """Return configurations, as canonical JSON, that took devices down; nobody should try them again."""
        query = sa.select(records.c.configuration).where(
            records.c.workload == workload,
            records.c.target == target,
            records.c.outcome == Outcome.QUARANTINED.value,
        )
        return {row.configuration for row in self._rows(query)}

    def tuned(self, function: Function, target: Target) -> Function:
        """Return a function with the best schedule that is known of it for a target; as it is if there is none.

        Raises
        ------
        ScheduleError
            The schedule that was recorded does not work any more.
        """
        from farm.tune.apply import apply_best

        return apply_best(self, function, target)

    def close(self) -> None:
        """Close it."""
        self._engine.dispose()

    def __enter__(self) -> Records:
        """Return this database."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _open(self) -> None:
        with self._reading.connect() as connection:
            known = _marks(connection)
        if known is None:
            with self._engine.begin() as connection:
                known = _marks(connection)  # of who was quicker
                if known is None:
                    _create(connection)
                    return
        marked, version = known
        if marked != APPLICATION_ID:
            raise InvalidInput(
                f"records {self.path}: a database of another program; name another file"
            )
        if version > VERSION:
            raise InvalidInput(
                f"records {self.path}: written by a newer kernel-farm (version {version}, this one reads up to "
                f"{VERSION}); update it"
            )
        if version < VERSION and not self._is_shown_only:
            with (
                self._engine.begin() as connection
            ):  # what is written from now on, older ones cannot read
                connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        def read() -> Sequence[sa.Row[Any]]:
            with self._reading.connect() as connection:
                return connection.execute(query).all()

        return self._patient(read)

    def _patient(self, action: Callable[[], T]) -> T:
        """Do something, again while others hold the database; say what is wrong with the file otherwise."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return action()
            except OperationalError as error:
                said = str(error.orig)
                if "locked" not in said and "busy" not in said:
                    raise _unusable(self.path, said) from error
                if time.monotonic() > deadline:
                    raise InfrastructureError(
                        f"records {self.path}: another process has held it for {WAIT_S:g} s; end that one"
                    ) from error
                time.sleep(0.05)
            except DatabaseError as error:
                raise _unusable(self.path, str(error.orig)) from error


def _check_file(path: Path) -> None:
    """Raise InvalidInput unless SQLite may be given a file: it writes over small ones that are none of its own."""
    if not path.exists() or not regular_size(path):
        return
    with path.open("rb") as file:
        head = file.read(len(_HEAD))
    if head != _HEAD:
        raise _unusable(path, "it is no database")


def _url(path: Path, *, shown_only: bool) -> sa.URL:
    if not shown_only:
        return sa.URL.create("sqlite", database=str(path))
    # Of one that nobody can write to here nothing is in a log, unless its last writer was killed.
    log = path.with_name(path.name + "-wal")
    options = {"uri": "true", "mode": "ro"} | ({} if log.exists() else {"immutable": "1"})
    return sa.URL.create("sqlite", database=f"file:{quote(str(path))}", query=options)


def _unusable(path: Path, said: str) -> InvalidInput | InfrastructureError:
    if "full" in said or "disk i/o" in said.lower():
        return InfrastructureError(f"records {path}: cannot be written ({said}); look at the disk")
    if "readonly" in said:
        return InvalidInput(
            f"records {path}: may only be read; correct its rights, or name another file"
        )
    return InvalidInput(
        f"records {path}: cannot be used ({said}); restore it from a copy or an export, or name another file"
    )


def _free(connection: Any, _record: Any) -> None:  # noqa: ANN401 - SQLAlchemy's event
    connection.isolation_level = None  # transactions begin where `_begin` says


def _prepare(connection: Any, record: Any) -> None:  # noqa: ANN401
    _free(connection, record)
    cursor = connection.cursor()
    for pragma in (f"busy_timeout={int(WAIT_S * 1000)}", "journal_mode=WAL", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    # A transaction that only becomes a writer later cannot wait for another: it would be told that it is locked.
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _marks(connection: sa.Connection) -> tuple[int, int] | None:
    """Return whose a database is and its version; None if it is empty."""
    marked = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    tables = sa.inspect(connection).get_table_names()
    return (marked, version) if tables or marked else None


def _create(connection: sa.Connection) -> None:
    metadata.create_all(connection)
    for table in metadata.tables:
        for action in ("UPDATE", "DELETE"):
            connection.exec_driver_sql(
                f"CREATE TRIGGER {table}_{action.lower()} BEFORE {action} ON {table} "
                "BEGIN SELECT RAISE(ABORT, 'records are never changed'); END"
            )
    connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")


def _row(each: Record | Winner, **more: str) -> dict[str, Any]:
    return {
        **_as_mapping(each.key),
        "id": each.id,
        "template": each.template,
        "configuration": canonical(each.configuration),
        "value": each.value,
        "wall": each.wall,
        "plain": canonical(each.to_plain()),
        **more,
    }


def _as_mapping(key: Key) -> Mapping[str, str]:
    return {name: getattr(key, name) for name in _KEY}


def _conditions(table: sa.Table, **given: str | None) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in given.items() if value is not None]
