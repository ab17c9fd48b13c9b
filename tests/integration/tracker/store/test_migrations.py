"""Databases of other versions: brought up to date with all that is in them, or refused and left as they are."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from farm_tracker import migrations
from farm_tracker.identity.store import VERSION, TokenStore
from farm_tracker.migrations import SCHEMA_VERSION
from farm_tracker.state.account import NO_LIMITS
from farm_tracker.store import Store
from farm_tracker.tables import metadata
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

from farm.errors import InfrastructureError

OLDER = (Path(__file__).parent / "schemas" / "2.sql").read_text()


def statements(dialect):
    """Return the statements that make a database of schema 2."""
    lines = [line for line in OLDER.splitlines() if not line.startswith("--")]
    script = "\n".join(lines)
    if dialect == "postgresql":
        script = script.replace("BLOB", "BYTEA").replace("'run'", "'run'::bytea")
        script = script.replace("'{}', 980.0", "'{}'::bytea, 980.0")
    return [it.strip() for it in script.split(";") if it.strip()]


@pytest.fixture(params=["sqlite", "postgresql"])
def older(request, tmp_path):
    """Return where a database of schema 2 with something in each table is."""
    where = tmp_path / "tracker.db"
    url = f"sqlite:///{where}"
    if request.param == "postgresql":
        where = url = request.getfixturevalue("postgresql")
    engine = create_engine(url, poolclass=NullPool)
    metadata.drop_all(engine)
    with engine.begin() as connection:
        for statement in statements(request.param):
            connection.execute(text(statement))
    yield where
    metadata.drop_all(engine)
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text(f"insert into meta values ('schema', '{SCHEMA_VERSION}')"))
    engine.dispose()


def shape(engine):
    """Return the columns and indices of each table."""
    found = inspect(engine)
    return {
        name: (
            {(it["name"], str(it["type"]), it["nullable"]) for it in found.get_columns(name)},
            {(it["name"], tuple(it["column_names"])) for it in found.get_indexes(name)},
            tuple(found.get_pk_constraint(name)["constrained_columns"]),
        )
        for name in found.get_table_names()
        if name in metadata.tables
    }


def test_older_database_is_brought_up_to_date_and_keeps_what_it_has(older):
    store = Store(older)
    loaded = store.load(5.0, 1020.0)
    (job,) = loaded.run_jobs
    assert (job.job_id, job.account, job.priority, job.state) == ("j", "alice", 3, "QUEUED")
    assert (job.not_before, job.variants) == (0.0, ())
    (account,) = loaded.accounts
    assert (account.usage_s, account.limits, account.window_at) == (12.5, NO_LIMITS, None)
    assert [(it.subject, it.account) for it in loaded.notes] == [("j", "")]
    assert (loaded.devices[0].admin, loaded.devices[0].epoch) == ("DRAINED", 7)
    with store._engine.connect() as connection:
        used = connection.execute(text("select used_wall from action_cache")).scalar()
    assert used == 980.0
    store.close()
    Store(older).close()  # a second time there is nothing to do


def test_older_database_looks_as_a_new_one_afterwards(older):
    store = Store(older)
    migrated = shape(store._engine)
    metadata.drop_all(store._engine)
    metadata.create_all(store._engine)
    assert shape(store._engine) == migrated
    store.close()


def test_older_database_stays_as_it_was_when_a_step_fails(older, monkeypatch):
    steps = (*migrations.STEPS[3], "ALTER TABLE nobody ADD COLUMN x FLOAT")
    monkeypatch.setitem(migrations.STEPS, 3, steps)
    with pytest.raises(Exception, match="nobody"):
        Store(older)
    url = f"sqlite:///{older}" if isinstance(older, Path) else older
    engine = create_engine(url, poolclass=NullPool)
    assert "variants" not in {it["name"] for it in inspect(engine).get_columns("jobs")}
    engine.dispose()
    monkeypatch.undo()
    Store(older).close()


@pytest.mark.parametrize(
    ("number", "told"),
    [
        ("99", r"written by a newer kernel-farm \(schema 99, this one reads up to 4\); install"),
        ("1", r"kernel-farm that is too old \(schema 1, this one reads from 2\); move"),
        ("x", r"its schema is no number \('x'\); restore it"),
        (None, r"has tables but no schema number, so another program made it; name"),
    ],
)
def test_database_of_another_version_is_refused_and_left_alone(tmp_path, number, told):
    path = tmp_path / "tracker.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE meta (name VARCHAR NOT NULL, value VARCHAR)")
        if number is not None:
            connection.execute("INSERT INTO meta VALUES ('schema', ?)", (number,))
    connection.close()
    with pytest.raises(InfrastructureError, match=told) as refused:
        Store(path)
    assert str(path) in refused.value.message
    with sqlite3.connect(path) as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [("meta",)]
        left = connection.execute("select value from meta").fetchall()
    connection.close()
    assert left == ([] if number is None else [(number,)])


def test_versions_are_numbered_without_a_gap():
    assert sorted(migrations.STEPS) == list(
        range(migrations.OLDEST + 1, migrations.SCHEMA_VERSION + 1)
    )


@pytest.mark.parametrize(
    "content", [b"no database at all" * 500, b"SQLite format 3\x00" + b"\xff" * 8000]
)
@pytest.mark.parametrize("opened", [Store, TokenStore])
def test_file_that_is_no_database_is_refused_and_left_alone(tmp_path, opened, content):
    path = tmp_path / "tracker.db"
    path.write_bytes(content)
    with pytest.raises(
        InfrastructureError, match=r"tracker\.db: cannot be read \(.+\); restore it"
    ):
        opened(path)
    assert path.read_bytes() == content


def test_tokens_of_a_newer_program_are_refused_and_left_alone(tmp_path):
    path = tmp_path / "identity.db"
    TokenStore(path).close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(InfrastructureError, match=rf"newer kernel-farm \(version {VERSION + 1}"):
        TokenStore(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION + 1,)
    connection.close()


def test_tokens_from_before_there_were_versions_get_the_first(tmp_path):
    path = tmp_path / "identity.db"
    TokenStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 0")
        connection.execute(
            "INSERT INTO tokens VALUES ('t', x'00', 'user', 'see', '', 'a', '', 1, 2, 0, 0)"
        )
    connection.close()
    store = TokenStore(path)
    assert [str(token.token_id) for token in store.load()] == ["t"]
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    connection.close()
