"""Files written whole or not at all, whatever stands in their place."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from farm.core.files import check_apart, replacing, write_atomic
from farm.errors import InvalidInput


def test_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / ("n" * 250)
    path.write_bytes(b"old")
    write_atomic(path, b"new")
    assert (path.read_bytes(), len(list(tmp_path.iterdir()))) == (b"new", 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_failure_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half():
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert (path.read_bytes(), len(list(tmp_path.iterdir()))) == (b"old", 1)


def test_rights_follow_the_umask_unless_the_file_is_private(tmp_path):
    before = os.umask(0o027)
    try:
        for private, mode in ((True, 0o600), (False, 0o640)):
            with replacing(tmp_path / "file", private=private) as file:
                file.write(b"x")
            assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    finally:
        os.umask(before)


def test_what_a_link_names_is_written_and_the_link_stays(tmp_path):
    (tmp_path / "link").symlink_to("file")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_pipe_is_written_to_and_not_replaced(tmp_path):
    path, got = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    write_atomic(path, b"through")
    reader.join(60)
    assert got == [b"through"]
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_read_may_not_be_written_over_under_any_name(tmp_path):
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"1")
    (tmp_path / "hard").hardlink_to(path)
    (tmp_path / "soft").symlink_to(path)
    for name in ("a", "hard", "soft"):
        with pytest.raises(InvalidInput, match="name another file"):
            check_apart(tmp_path / name, path)
    check_apart(other, path)
    check_apart(path, other)
