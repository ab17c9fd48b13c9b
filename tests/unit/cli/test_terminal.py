"""Progress on a terminal: live, on standard error alone, without colour if the user wants none."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

FARM = [sys.executable, "-c", "from farm.cli.main import main; main()"]


@pytest.fixture
def on_terminal(tmp_path):
    """Run a command whose standard error is a terminal; return its exit code, output and screen."""

    def run(*arguments, **variables):
        master, slave = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
        environment |= {"TERM": "xterm-256color", "COLUMNS": "120", **variables}
        try:
            ended = subprocess.run(
                [*FARM, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=slave,
                cwd=tmp_path,
                env=environment,
                timeout=180,
            )
            screen = os.read(master, 1 << 16).decode()  # it all fits the terminal's buffer
        finally:
            os.close(master)
            os.close(slave)
        return ended.returncode, ended.stdout, screen

    return run


def test_build_on_a_terminal_shows_live_progress_and_prints_json_apart(on_terminal, kernels):
    code, out, screen = on_terminal("build", kernels, "--local", "-o", "json")
    assert code == 0
    assert len(json.loads(out)["builds"]) == 1
    assert "\x1b[" in screen  # the live display
    assert "building double for llvm" in screen
    assert "built    double for llvm" in screen


def test_error_on_a_terminal_is_red_unless_the_user_wants_no_colour(on_terminal):
    code, out, coloured = on_terminal("devices", "--tracker", "nowhere")
    assert (code, out) == (2, b"")
    assert coloured.startswith("\x1b[31m\x1b[1merror:\x1b[0m address: malformed ('nowhere')")
    _, _, plain = on_terminal("devices", "--tracker", "nowhere", NO_COLOR="1")
    assert plain.startswith("error: address: malformed ('nowhere')")
    assert "\x1b[" not in plain
