"""Versions of the database: what each number changed, and bringing an older one up to date.

Owns: the number that this program reads, the statements of each step, refusing what it cannot read.
Does not own: the tables as they are now (`tables`).

Invariant: all steps that a database needs happen in one transaction with its new number, so that a crash leaves the
old database or the new one. A step is never edited once it was released. Statements are understood by SQLite and
PostgreSQL alike.

Versions: 1 had builds only. 2 added jobs, run attempts, accounts, events and operators' wishes. 3 added the delay of
a job before it is tried again, what its artifact has for which device, accounts' limits, the account of an event, when
a cached module was last used, and indices by age. 4 added since when a device is offline, the epoch that new
devices go on from, and how long a job avoids devices that failed it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlalchemy import inspect, select, text

from farm.errors import InfrastructureError
from farm_tracker.dialects import begin_alone
from farm_tracker.tables import meta, metadata

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Engine

log = logging.getLogger(__name__)

SCHEMA_VERSION = 4

STEPS: Mapping[int, Sequence[str]] = {
    3: (
        "ALTER TABLE jobs ADD COLUMN not_before_wall FLOAT",
        "ALTER TABLE jobs ADD COLUMN variants VARCHAR DEFAULT '' NOT NULL",
        "ALTER TABLE accounts ADD COLUMN max_held INTEGER",
        "ALTER TABLE accounts ADD COLUMN max_queued INTEGER",
        "ALTER TABLE accounts ADD COLUMN budget_s FLOAT",
        "ALTER TABLE accounts ADD COLUMN window_s FLOAT",
        "ALTER TABLE accounts ADD COLUMN window_wall FLOAT",
        "ALTER TABLE accounts ADD COLUMN window_used_s FLOAT DEFAULT 0 NOT NULL",
        "ALTER TABLE events ADD COLUMN account VARCHAR DEFAULT '' NOT NULL",
        "ALTER TABLE action_cache ADD COLUMN used_wall FLOAT DEFAULT 0 NOT NULL",
        "UPDATE action_cache SET used_wall = stored_wall",
        "CREATE INDEX ix_action_cache_used_wall ON action_cache (used_wall)",
        "CREATE INDEX ix_attempts_changed_wall ON attempts (changed_wall)",
        "CREATE INDEX ix_builds_changed_wall ON builds (changed_wall)",
    ),
    4: (
        "ALTER TABLE devices ADD COLUMN offline_wall FLOAT",
        "ALTER TABLE jobs ADD COLUMN elsewhere_until_wall FLOAT",
        "CREATE TABLE counters (name VARCHAR NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (name))",
    ),
}
"""What leads to each version from the one before it."""

OLDEST = min(STEPS) - 1
"""The oldest version that can be brought up to date."""


def bring_up_to_date(engine: Engine, where: str) -> None:
    """Make the tables of a new database, or take the steps that an older one lacks.

    Raises
    ------
    InfrastructureError
        A newer program wrote it, or one so old that no step is known; nothing changed.
    """
    with engine.connect() as connection, begin_alone(connection):
        found = _version(connection, where)
        if found is None:
            metadata.create_all(connection)
            connection.execute(meta.insert().values(name="schema", value=str(SCHEMA_VERSION)))
            return
        _check(found, where)
        for number in range(found + 1, SCHEMA_VERSION + 1):
            for statement in STEPS[number]:
                connection.execute(text(statement))
        if found != SCHEMA_VERSION:
            log.warning("store %s: brought from schema %d to %d", where, found, SCHEMA_VERSION)
            changed = meta.update().where(meta.c.name == "schema")
            connection.execute(changed.values(value=str(SCHEMA_VERSION)))


def _version(connection: Connection, where: str) -> int | None:
    """Return the number of a database; None: nothing was ever stored in it."""
    if not inspect(connection).has_table(meta.name):
        return None
    found = connection.execute(select(meta.c.value).where(meta.c.name == "schema")).scalar()
    if found is None:
        raise InfrastructureError(
            f"store {where}: it has tables but no schema number, so another program made it; name a database "
            "of its own, or another data folder"
        )
    if not str(found).isdecimal():
        raise InfrastructureError(
            f"store {where}: its schema is no number ({str(found)[:40]!r}); restore it from a copy"
        )
    return int(found)


def _check(found: int, where: str) -> None:
    if found > SCHEMA_VERSION:
        raise InfrastructureError(
            f"store {where}: written by a newer kernel-farm (schema {found}, this one reads up to "
            f"{SCHEMA_VERSION}); install that version again, or use another data folder"
        )
    if found < OLDEST:
        raise InfrastructureError(
            f"store {where}: written by a kernel-farm that is too old (schema {found}, this one reads from "
            f"{OLDEST}); move the data folder away and start with a new one"
        )
