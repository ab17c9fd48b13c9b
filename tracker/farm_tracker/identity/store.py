"""Tokens on disk: a SQLite file of their own.

Owns: the table. Does not own: what tokens mean (`tokens`), or secrets: it gets digests.

Invariant: the file is readable by the tracker's user only; what `write` returned from survives a crash. Apart from
the state's database, so that restoring an old copy of that brings no revoked token back. All calls block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Float,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from farm.core.files import private_file
from farm.core.tokens import TokenId
from farm.errors import InfrastructureError
from farm.target import Selector
from farm_tracker.dialects import unreadable, url_of
from farm_tracker.identity.model import Role, Token, Verb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sqlalchemy import Connection

VERSION = 1
"""Of the table, in the file's `user_version`; a file without one has this one, too."""

metadata = MetaData()

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", String, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("role", String, nullable=False),
    Column("verbs", String, nullable=False),
    Column("labels", String, nullable=False),
    Column("account", String, nullable=False),
    Column("agent_id", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("revoked_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
)


class TokenStore:
    """The database of tokens."""

    def __init__(self, path: Path) -> None:
        private_file(path)
        self._engine = create_engine(
            url_of(path), poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        event.listen(self._engine, "connect", _configure)
        try:
            with self._engine.begin() as connection:
                self._check_version(connection, path)
                metadata.create_all(connection)
        except DBAPIError as error:
            self._engine.dispose()
            raise unreadable(self._engine, error) from error
        except InfrastructureError:
            self._engine.dispose()
            raise

    def _check_version(self, connection: Connection, path: Path) -> None:
        """Refuse a newer program's file; give a new one, or one from before there were numbers, its number."""
        found = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        if found > VERSION:
            raise InfrastructureError(
                f"tokens {path}: written by a newer kernel-farm (version {found}, this one reads up to {VERSION}); "
                "install that version again"
            )
        if found < VERSION:
            connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        """Close the file."""
        self._engine.dispose()

    def load(self) -> list[Token]:
        """Return every token, oldest first."""
        with self._engine.begin() as connection:
            query = select(tokens).order_by(tokens.c.created_at, tokens.c.token_id)
            return [_token(row) for row in connection.execute(query).mappings()]

    def write(self, changed: Sequence[Token], removed: Sequence[TokenId] = ()) -> None:
        """Store tokens, new or changed, and drop others, in one transaction.

        Raises
        ------
        sqlalchemy.exc.SQLAlchemyError
            The file cannot be written; nothing of it was.
        """
        with self._engine.begin() as connection:
            if changed:
                statement = insert(tokens)
                set_ = {c.name: statement.excluded[c.name] for c in tokens.columns}
                statement = statement.on_conflict_do_update(index_elements=["token_id"], set_=set_)
                connection.execute(statement, [_row(token) for token in changed])
            if removed:
                connection.execute(tokens.delete().where(tokens.c.token_id.in_(removed)))


def _configure(connection: Any, _record: Any) -> None:  # noqa: ANN401 - SQLAlchemy's event
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _row(token: Token) -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "digest": token.digest,
        "role": str(token.role),
        "verbs": ",".join(sorted(token.verbs)),
        "labels": str(token.labels),
        "account": token.account,
        "agent_id": token.agent_id,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "used_at": token.used_at,
    }


def _token(row: Any) -> Token:  # noqa: ANN401 - rows are dynamic
    fields = dict(row)
    return Token(
        **{
            **fields,
            "token_id": TokenId(fields["token_id"]),
            "role": Role(fields["role"]),
            "verbs": frozenset(map(Verb, fields["verbs"].split(","))),
            "labels": Selector.parse(fields["labels"]),
        }
    )
