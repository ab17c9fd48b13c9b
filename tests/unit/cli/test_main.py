"""The entry of the command line: helps, exit codes, and what is shown of a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest

import farm
from farm import errors
from farm.cli import main
from farm.cli.output import output_option

ERRORS = [cls for cls in errors.all_errors() if cls.__module__ == "farm.errors"]
FARM = [sys.executable, "-c", "from farm.cli.main import main; main()"]


@pytest.fixture
def failing(monkeypatch):
    """Make ``farm fail`` a command that raises what it is given."""

    def make(raised):
        @click.command("fail")
        @output_option
        def command(output):
            raise raised

        module = types.ModuleType("tests_failing_command")
        module.command = command
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(main.COMMANDS, "fail", module.__name__)

    return make


def test_help_of_the_group_names_every_command_and_exit_code(cli):
    ended = cli("--help")
    assert (ended.code, ended.err) == (0, "")
    for word in ("up", "demo", "build", "inspect", "run", "devices", "agent"):
        assert f"\n  {word} " in ended.out
    for code in {cls.exit_code for cls in ERRORS} | {0, 130}:
        assert f" {code}  " in ended.out


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_help_of_a_command_has_an_example_and_the_output_option(cli, name):
    ended = cli(name, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert "Example" in ended.out
    assert f"farm {name}" in ended.out
    command = main.group.get_command(click.Context(main.group), name)
    for part in getattr(command, "commands", ()):
        ended = cli(name, part, "--help")
        assert f"farm {name} {part}" in ended.out
        assert "-o, --output [text|json]" in ended.out
    assert "-o, --output [text|json]" in ended.out


def test_version_is_the_library_s(cli):
    assert cli("--version").out == f"kernel-farm {farm.__version__}\n"


def test_help_in_a_fresh_interpreter_loads_no_heavy_library():
    source = (
        "import sys; from farm.cli.main import COMMANDS, run\n"
        "for name in COMMANDS: run([name, '--help'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=180
    )
    heavy = {"grpc", "llvmlite", "numpy", "ray", "rich", "sqlalchemy"}
    assert heavy & set(ended.stderr.split()) == set()


@pytest.mark.parametrize("cls", ERRORS)
def test_farm_error_ends_with_its_exit_code_and_message(cli, failing, cls):
    failing(cls("kernel k: wrong (1); mend it", symbol="k"))
    ended = cli("fail")
    assert (ended.code, ended.out) == (cls.exit_code, "")
    assert ended.err == "error: kernel k: wrong (1); mend it\n"


@pytest.mark.parametrize("cls", ERRORS)
def test_farm_error_with_json_is_one_object_on_standard_output(cli, failing, cls):
    failing(cls("kernel k: wrong (1); mend it", symbol="k"))
    ended = cli("fail", "-o", "json")
    assert (ended.code, ended.err) == (cls.exit_code, "")
    assert ended.error == {
        "code": cls.code,
        "message": "kernel k: wrong (1); mend it",
        "details": {"symbol": "k"},
    }


def test_error_of_a_newer_peer_keeps_its_code(cli, failing):
    failing(errors.FarmError("x: y", code="FROM_A_NEWER_PEER"))
    assert cli("fail", "-o", "json").error["code"] == "FROM_A_NEWER_PEER"


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "-o", "json"),
        ("inspect", "-ojson", "absent.farm"),
        ("inspect", "--output=json", "absent.farm"),
        ("devices", "--nonsense", "--output", "json"),
        ("nonsense", "-o", "json"),
    ],
)
def test_usage_error_with_json_is_an_object_with_code_usage(cli, arguments):
    ended = cli(*arguments)
    assert (ended.code, ended.err) == (2, "")
    assert ended.error["code"] == "USAGE"


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("run",), ("devices", "--nonsense"), ("run", "absent.farm", "f")]
)
def test_usage_error_in_text_goes_to_standard_error(cli, arguments):
    ended = cli(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "Error: " in ended.err


def test_json_words_after_two_dashes_are_arguments(cli):
    ended = cli("inspect", "--", "-ojson")
    assert (ended.code, ended.out) == (2, "")


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), click.Abort()])
def test_interrupt_ends_with_130(cli, failing, raised):
    failing(raised)
    ended = cli("fail")
    assert (ended.code, ended.out, ended.err) == (130, "", "error: interrupted\n")


def test_unexpected_error_is_one_line_with_a_hint(cli, failing):
    failing(ZeroDivisionError("division by zero"))
    ended = cli("fail")
    assert ended.code == 6
    assert ended.err == (
        "error: ZeroDivisionError: division by zero; this is a bug; set FARM_DEBUG=1 to see the traceback\n"
    )


def test_unexpected_error_with_the_debug_variable_shows_the_traceback(cli, failing, monkeypatch):
    failing(ZeroDivisionError("division by zero"))
    monkeypatch.setenv("FARM_DEBUG", "1")
    ended = cli("fail")
    assert ended.code == 6
    assert ended.err.startswith("Traceback (most recent call last):")


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (PermissionError(13, "Permission denied", "x.farm"), 2),
        (FileNotFoundError(2, "No such file or directory", "x.farm"), 2),
        (OSError(28, "No space left on device", "x.farm"), 6),
        (OSError("no file at all"), 6),
        (OSError(5, "Input/output error"), 6),
    ],
)
def test_os_error_blames_the_path_or_the_disk(cli, failing, raised, code):
    failing(raised)
    ended = cli("fail")
    assert ended.code == code
    assert ended.err.startswith("error: ")
    assert ("x.farm" in ended.err) == (raised.filename is not None)


def test_full_disk_under_standard_output_is_told_on_standard_error_and_as_no_bug(artifact):
    with Path("/dev/full").open("w") as full:
        for options in ((), ("-o", "json")):
            ended = subprocess.run(
                [*FARM, "inspect", str(artifact), *options],
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=180,
            )
            told = b"error: input or output: No space left on device; look at the disk\n"
            assert (ended.returncode, ended.stderr) == (6, told)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("arguments", "code"), [(("--version",), 0), (("nope",), 2), (("devices", "--tracker", "x"), 2)]
)
def test_reader_of_errors_that_is_gone_changes_no_exit_code(stream, arguments, code):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: closed}
        ended = subprocess.run([*FARM, *arguments], timeout=180, **streams)
    if stream == "stdout" and code == 0:
        code = 141
    assert ended.returncode == code
    assert b"Traceback" not in (ended.stderr or b"")


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("name", "code"), [("mix.farm", 0), ("none.farm", 2)])
def test_closed_standard_streams_change_no_exit_code(artifact, streams, name, code):
    command = [*FARM, "inspect", str(artifact.with_name(name))]
    ended = subprocess.run(
        ["sh", "-c", f'"$@" {streams}', "sh", *command], capture_output=True, timeout=180
    )
    assert ended.returncode == code
    assert b"bug" not in ended.stderr


def test_broken_pipe_is_quiet(artifact):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        ended = subprocess.run(
            [*FARM, "inspect", str(artifact)], stdout=closed, stderr=subprocess.PIPE, timeout=180
        )
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_successful_command_in_a_process_of_its_own_ends_with_0(artifact):
    ended = subprocess.run(
        [*FARM, "inspect", str(artifact), "-o", "json"], capture_output=True, timeout=180
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert json.loads(ended.stdout)["targets"] == ["llvm -mtriple=x86_64-linux-gnu -mcpu=generic"]
