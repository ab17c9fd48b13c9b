"""`import farm` stays light: the heavy libraries come with what needs them."""

from __future__ import annotations

import json
import subprocess
import sys


def test_import_farm_in_a_fresh_interpreter_loads_no_heavy_library() -> None:
    source = "import json, sys, farm; print(json.dumps([farm.__name__, *sys.modules]))"
    run = subprocess.run(
        [sys.executable, "-I", "-c", source],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    name, *modules = json.loads(run.stdout)
    assert name == "farm"
    assert {"grpc", "llvmlite", "ray", "sqlalchemy"} & set(modules) == set()
