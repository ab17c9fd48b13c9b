"""The benchmark of tiles in small; its figures are cycles of a model, so that the goals can be tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "landscape.py"


@pytest.mark.parametrize(
    ("name", "part"), [("512", 0.95), ("vector", 0.5), ("tall", 0.95), ("conv3x3", 0.95)]
)
def test_tiles_chosen_without_hints_reach_the_goals(name, part):
    command = [sys.executable, BENCH, "--only", name, "--schedules", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    best, default, cycles = (json.loads(line) for line in done.stdout.splitlines())
    assert best["name"] == f"landscape_{name}_best"
    assert default["name"] == f"landscape_{name}_default"
    assert cycles["name"] == f"landscape_{name}_cycles"
    assert part <= best["value"] <= 1
    assert cycles["value"] >= cycles["peer_value"] > 0
    assert 1 <= default["value"] <= 1.2
