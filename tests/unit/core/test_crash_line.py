"""The words of a crash, at the end of a log and nowhere else."""

from __future__ import annotations

import pytest

from farm.core.crash_line import read_place, size_of, words_for

PLACE = {"symbol": "blur", "file": "source.c", "line": "12"}


@pytest.fixture
def log(tmp_path):
    return tmp_path / "output.log"


@pytest.mark.parametrize("before", [b"", b"printed\n", b"no end of line", b"x" * 5000])
def test_words_at_the_end_of_a_log_are_read(log, before):
    log.write_bytes(before + words_for("blur", "source.c", 12).encode())
    assert read_place(log) == PLACE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        words_for("blur", "source.c", 12).encode() + b"more\n",
        b"farm-crash: blur at source.c:12",
        b"farm-crash: blur at source.c:many\n",
        b"x farm-crash: blur at source.c:12\n",
        b"farm-crash: " + b"n" * 300 + b" at source.c:12\n",
    ],
)
def test_anything_else_at_the_end_is_no_place(log, content):
    log.write_bytes(content)
    assert read_place(log) == {}


def test_words_of_an_earlier_crash_do_not_count(log):
    assert (read_place(log), size_of(log)) == ({}, 0)
    log.write_bytes(words_for("blur", "source.c", 12).encode())
    before = size_of(log)
    assert read_place(log, before) == {}
    with log.open("ab") as file:
        file.write(words_for("edge", "edge.func", 3).encode())
    assert read_place(log, before) == {"symbol": "edge", "file": "edge.func", "line": "3"}
