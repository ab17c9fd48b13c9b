"""Stores on each database that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm_tracker.store import Store
from farm_tracker.tables import metadata


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Return the URL of a PostgreSQL server of this session, on a socket in a folder."""
    if shutil.which("pg_ctl") is None or shutil.which("initdb") is None:
        pytest.skip("needs PostgreSQL's initdb and pg_ctl on the PATH")
    pytest.importorskip("psycopg", reason="needs psycopg: install kernel-farm[postgresql]")
    with tempfile.TemporaryDirectory(prefix="farm-postgresql-") as folder:
        yield from _served(Path(folder))


def _served(folder: Path) -> Iterator[str]:
    as_user = _unprivileged(folder)
    run: dict[str, Any] = {"check": True, "capture_output": True, "timeout": 180}
    data = folder / "data"
    subprocess.run([*as_user, "initdb", "-D", data, "-A", "trust", "-U", "farm"], **run)
    options = f"-c listen_addresses='' -c unix_socket_directories='{folder}'"
    log = folder / "log"
    start = [*as_user, "pg_ctl", "-D", data, "-w", "-l", log, "-o", options, "start"]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL, timeout=180)
    try:
        yield f"postgresql+psycopg://farm@/postgres?host={folder}"
    finally:
        subprocess.run([*as_user, "pg_ctl", "-D", data, "-m", "immediate", "stop"], **run)


def _unprivileged(folder: Path) -> list[str]:
    """Return what runs a command as a user whom PostgreSQL accepts: it refuses root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("runuser") is None:
        pytest.skip("needs runuser, since PostgreSQL does not run as root")
    shutil.chown(folder, "postgres")
    return ["runuser", "-u", "postgres", "--"]


@pytest.fixture(params=["sqlite", "postgresql"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Return a function that opens the same empty store again and again."""
    if request.param == "sqlite":
        return lambda: Store(tmp_path / "tracker.db")
    url = request.getfixturevalue("postgresql")
    store = Store(url)
    with store._engine.begin() as connection:
        for table in metadata.tables.values():
            if table.name != "meta":
                connection.execute(table.delete())
    store.close()
    return lambda: Store(url)
