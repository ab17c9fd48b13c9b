"""The report: one page with every plot, whatever the records hold."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.tune.landscapes import Landscape

import farm.ops as ops
import farm.te as te
from farm.measuring import Status
from farm.tune.records import Records
from farm.tune.report import report
from farm.tune.report.svg import TICKS, Axis, Series, _Scale, plot
from farm.tune.tuning import tune


class Page(HTMLParser):
    """Collects elements, and refuses what is not closed or loads something."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "tune.db")


def test_report_of_a_tuning_shows_every_plot_and_loads_nothing(records: Records) -> None:
    x = te.placeholder((4096,), name="x")
    function = te.function("layer", [x, ops.relu(ops.add(x, x))])
    known: dict[str, int] = {}

    def formula(each: object) -> float | Status:
        number = known.setdefault(str(each), len(known))
        return Status.CRASH if number % 5 == 2 else 100.0 + number

    tune(function, Landscape(formula), trials=20, records=records)
    text = report(records, title="a < b & c")
    page = Page(text)
    assert "http" not in text.replace("http-equiv", "")
    for heading in (
        "Progress",
        "Landscape",
        "Samples of the best",
        "Noise",
        "Roofline",
        "Failures",
    ):
        assert heading in page.text
    assert page.counts["svg"] >= 6
    assert "a < b & c" in page.text
    assert "roof, as measured" in page.text
    assert "layer for" in page.text


def test_report_escapes_what_records_say(records: Records) -> None:
    x = te.placeholder((4096,), name="x")
    function = te.function("layer", [x, ops.relu(x)])
    tune(function, Landscape(lambda _: 5.0), trials=3, records=records, ceilings=False)
    bad = next(iter(records.find()))
    records.add(
        [replace(bad, error_message="<script>alert(1)</script>", key=replace(bad.key, host="<b>"))]
    )
    text = report(records)
    Page(text)
    assert "<script>" not in text
    assert "<b>" not in text


def test_report_of_nothing_and_of_failures_alone(records: Records) -> None:
    assert "No records" in Page(report(records)).text
    x = te.placeholder((4096,), name="x")
    function = te.function("layer", [x, ops.relu(x)])
    tune(function, Landscape(lambda _: Status.WRONG), trials=3, records=records)
    text = Page(report(records)).text
    assert "Nothing to show" in text
    assert "wrong" in text


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "points",
    [
        [(1.0, 1.0)],
        [(0.0, 0.0), (0.0, 0.0)],
        [(1.0, 5.0), (2.0, 5.0)],
        [(-1.0, 2.0), (3.0, float("inf"))],
        [(1e-9, 1e9), (1e9, 1e-9)],
        [],
    ],
)
def test_plot_takes_any_points(points: list[tuple[float, float]], log: bool) -> None:
    text = plot(
        [Series("s", points), Series("t", points, line="steps")], Axis("x", log), Axis("y", log)
    )
    Page(text)
    for number in re.findall(r'(?:cx|cy|x1|y1)="([^"]*)"', text):
        assert -1 <= float(number) <= 641


@given(st.floats(1e-6, 1e9), st.floats(1.0, 1e9))
def test_logarithmic_axis_has_a_few_round_marks_in_order_within_its_range(
    low: float, ratio: float
) -> None:
    scale = _Scale([low, low * ratio], True, 0.0, 100.0)
    marks = scale.ticks()
    assert 1 <= len(marks) <= TICKS + 2
    assert marks == sorted(marks)
    assert all(-1e-6 <= scale.at(mark) <= 100.0 + 1e-6 for mark in marks)


def test_logarithmic_axis_over_a_decade_says_what_people_write() -> None:
    assert _Scale([1101.0, 4500.0], True, 0.0, 1.0).ticks() == [2000, 3000, 4000]
    assert _Scale([1.0, 1e6], True, 0.0, 1.0).ticks() == [1, 10, 100, 1000, 1e4, 1e5, 1e6]
