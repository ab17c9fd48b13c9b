"""The benchmark of a whole tracker in small: it runs to its end and prints every figure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "tracker_scale.py"
FIGURES = ["restart", "submits", "heartbeats", "tracker_memory", "dispatches"]
FIGURES += ["grant_p50", "grant_p99", "restart_full"]


def test_tracker_scale_in_small_prints_each_figure():
    done = subprocess.run(
        [sys.executable, BENCH, "--small"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert [it["name"] for it in figures] == FIGURES
    assert all(it["value"] > 0 and it["samples"] > 0 for it in figures)
