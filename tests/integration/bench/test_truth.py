"""The benchmark of comparisons in small: it runs to its end, prints every figure, and says nothing that is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "truth.py"
FIGURES = ["false_alarms", "right", "wrong", "inconclusive", "s"]


def test_truth_in_small_prints_each_figure_and_is_never_wrong():
    done = subprocess.run(
        [sys.executable, BENCH, "--trials", "1", "--noise", "1", "--difference", "0.5"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    figures = {it["name"]: it["value"] for it in lines}
    assert list(figures) == [f"compare_{name}" for name in FIGURES]
    assert figures["compare_wrong"] == 0
    assert figures["compare_right"] + figures["compare_inconclusive"] == 100
    assert figures["compare_s"] > 0
