"""How a tuning under way is shown, on a terminal and in a pipe."""

from __future__ import annotations

import io
from functools import partial

import pytest
from unit.tune.landscapes import Landscape

import farm.ops as ops
import farm.te as te
from farm.cli import tuning_view
from farm.cli.tuning_view import amount, shown
from farm.measuring import Status
from farm.tune.tuning import tune


def layer():
    x = te.placeholder((4096,), name="x")
    return te.function("layer", [x, ops.relu(ops.add(x, x))])


def formula(known, function):
    number = known.setdefault(str(function), len(known))
    return Status.CRASH if number == 2 else 1000.0 - number


def test_in_a_pipe_there_is_a_line_for_each_gain_and_one_for_the_comparison(capsys):
    with shown() as view:
        tune(layer(), Landscape(partial(formula, {})), trials=6, observer=view)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("trial 0/6; layer -")
    assert any("(1 crash)" in line for line in lines)
    assert lines[-1] == "comparing the best with what was known before"
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_a_table_shows_workloads_devices_and_reasons(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(tuning_view, "REFRESH_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with shown() as view:
        tune(layer(), Landscape(partial(formula, {}), devices=2), trials=6, observer=view)
    text = terminal.getvalue()
    for word in ("WORKLOAD", "layer", "DEVICE", "device-0", "device-1", "1 crash", "6 of 6 trials"):
        assert word in text
    assert "1 x crash: kernel: crash" in text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ns", "-"),
        (12.0, "ns", "12 ns"),
        (3_410_000.0, "ns", "3.41 ms"),
        (2.5e9, "ns", "2.5 s"),
        (8_120.0, "cycles", "8,120 cycles"),
    ],
)
def test_times_are_shown_in_the_unit_that_reads_best(value, unit, text):
    assert amount(value, unit) == text
