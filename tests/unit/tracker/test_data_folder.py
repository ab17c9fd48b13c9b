"""A data folder that cannot be used is told in one line, not in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from farm_tracker.identity.store import TokenStore
from farm_tracker.main import main
from farm_tracker.store import Store, _shown

INFRASTRUCTURE = 6


@pytest.mark.parametrize("below", ["", "below"])
def test_tracker_whose_data_folder_is_a_file_says_so_and_ends(tmp_path, capsys, below):
    path = tmp_path / "file"
    path.touch()
    folder = path / below
    listen = ("--listen", "127.0.0.1:0", "--plaintext")
    assert main(["--data-dir", str(folder), *listen]) == INFRASTRUCTURE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"farm_tracker: data folder {folder}: cannot be used (")


@pytest.mark.parametrize("name", ["tracker.db", "identity.db"])
def test_tracker_whose_database_is_garbage_says_so_and_ends(tmp_path, capsys, name):
    (tmp_path / name).write_bytes(b"garbage " * 1000)
    listen = ("--listen", "127.0.0.1:0", "--plaintext")
    assert main(["--data-dir", str(tmp_path), *listen]) == INFRASTRUCTURE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"farm_tracker: store {tmp_path / name}: cannot be read (")


@pytest.mark.parametrize("name", ["odd ?mode=memory&a", "a#b%20c", ":memory:", "file:x"])
def test_databases_are_where_their_paths_say_whatever_letters_are_in_them(
    tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    folder = Path(name)
    folder.mkdir()
    for make, path in (
        (Store, folder / "state"),
        (TokenStore, folder / "tokens"),
        (Store, Path(f"{name}.db")),
    ):
        make(path).close()
        assert path.read_bytes().startswith(b"SQLite format 3"), path
    assert {it.name for it in tmp_path.iterdir()} == {name, f"{name}.db"}


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("postgresql+psycopg://farm:secret@db/farm", "postgresql+psycopg://***@db/farm"),
        ("postgresql://farm:se/cr@et@db/farm", "postgresql://***@db/farm"),
        ("postgresql://db/farm?user=u&password=secret", "postgresql://db/farm"),
        ("postgresql://u:secret@db/farm?password=secret", "postgresql://***@db/farm"),
        ("postgresql://db/farm", "postgresql://db/farm"),
        ("/data/odd ?name/tracker.db", "/data/odd ?name/tracker.db"),
    ],
)
def test_nothing_that_may_be_a_password_of_a_database_is_shown(where, shown):
    assert _shown(where) == shown
