"""Forms of output: tables, units, JSON."""

from __future__ import annotations

import io
import json
import sys

import pytest

from farm.cli.output import Output, seconds, size, table, to_json


def test_table_aligns_columns_and_cuts_nothing():
    long = "x" * 200
    assert table(("A", "LONGER"), [("1", "2"), (long, "3")]) == (
        f"A{' ' * 199}  LONGER\n1{' ' * 199}  2\n{long}  3"
    )


def test_table_without_rows_is_its_header():
    assert table(("A", "B"), []) == "A  B"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_size_is_told_in_the_unit_that_fits(size_bytes, text):
    assert size(size_bytes) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (2.0, "2.000 s"),
        (0.25, "250.000 ms"),
        (1.5e-6, "1.500 us"),
        (25e-9, "25 ns"),
        (0.0, "0 ns"),
    ],
)
def test_seconds_are_told_in_the_unit_that_fits(value_s, text):
    assert seconds(value_s) == text


def test_json_refuses_what_json_cannot_express():
    with pytest.raises(ValueError, match="JSON"):
        to_json({"x": float("nan")})


def test_result_goes_to_standard_output_in_the_form_asked_for(capsys):
    Output(json=True).result({"ü": 1}, "text")
    assert capsys.readouterr() == ('{\n  "ü": 1\n}\n', "")
    Output(json=False).result({"ü": 1}, "text")
    assert capsys.readouterr() == ("text\n", "")


def test_steps_away_from_a_terminal_are_plain_lines_on_standard_error(capsys):
    with Output(json=False).steps("title") as steps:
        steps.say("[bold] is no mark-up")
        steps.advance(1, 2)
    assert capsys.readouterr() == ("", "[bold] is no mark-up\n")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("text", ["ü", "\udcff.farm", "漢", "plain"])
def test_json_of_any_text_is_json_whatever_standard_output_takes(monkeypatch, encoding, text):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    written = to_json({"file": text}).encode(encoding)
    assert json.loads(written.decode(encoding)) == {"file": text}
