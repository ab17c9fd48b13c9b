"""A data folder that cannot be used is told in one line, not in a traceback."""

from __future__ import annotations

import pytest
from farm_tracker.main import main

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
