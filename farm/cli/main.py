"""The entry of ``farm``: the group of commands, and what becomes of a failure.

Owns: finding a command, exit codes, the last line of defence against an unexpected error.
Does not own: any command.

Invariant: loads only the commands that are needed, and no command loads gRPC, a compiler or Ray before it runs.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import click

import farm
from farm.cli.output import has_result, show_error, wants_json
from farm.errors import FarmError

COMMANDS = {
    "up": "farm.cli.up",
    "demo": "farm.cli.demo",
    "build": "farm.cli.build",
    "inspect": "farm.cli.inspect",
    "export": "farm.cli.export",
    "tune": "farm.cli.tune",
    "records": "farm.cli.records",
    "report": "farm.cli.report",
    "run": "farm.cli.run",
    "measure": "farm.cli.measure",
    "compare": "farm.cli.compare",
    "submit": "farm.cli.submit",
    "wait": "farm.cli.wait",
    "logs": "farm.cli.logs",
    "result": "farm.cli.result",
    "get": "farm.cli.job:get",
    "cancel": "farm.cli.job:cancel",
    "why": "farm.cli.job:why",
    "devices": "farm.cli.devices",
    "queue": "farm.cli.queue:queue",
    "jobs": "farm.cli.queue:jobs",
    "who": "farm.cli.who:who",
    "store": "farm.cli.store",
    "events": "farm.cli.who:events",
    "acquire": "farm.cli.lease:acquire",
    "extend": "farm.cli.lease:extend",
    "release": "farm.cli.lease:release",
    "drain": "farm.cli.drain:drain",
    "resume": "farm.cli.drain:resume",
    "agent": "farm.cli.agent",
    "token": "farm.cli.token",
    "account": "farm.cli.account",
    "connect": "farm.cli.token:connect",
    "graph": "farm.cli.graph",
    "accelerator": "farm.cli.accelerator",
    "ea": "farm.cli.ea",
}
DEBUG_VARIABLE = "FARM_DEBUG"
EXIT_USAGE = 2
EXIT_INTERNAL = 6
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as a shell reports a process that SIGPIPE ended
_USERS = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EROFS),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ETXTBSY),
)
_DISKS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)

EPILOG = """\
\b
Exit codes:
  0  ok                               6  infrastructure, or a bug
  1  the kernel failed                7  nobody can serve this
  2  usage, or rejected input         8  not allowed
  3  build error                      9  a comparison found a candidate slower
  4  time limit                      10  tracker unreachable
  5  cancelled                       11  a comparison ended inconclusive
                                    130  interrupted

With -o json a failure is {"error": {"code", "message", "details"}} on standard output; its code is stable.

With FARM_DEBUG=1 an error shows its traceback. FARM_TRACKER is the tracker's address if --tracker is not given.
FARM_TOKEN is the token to show there; else that of `farm connect`, or of a farm that this user runs on this machine.
"""


class Commands(click.Group):
    """A group that imports a command's module when the command is wanted."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names in the order in which a new user meets them."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return a command, None if there is none of this name."""
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(importlib.import_module(module), attribute or "command")
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(farm.__version__, message="kernel-farm %(version)s")
def group() -> None:
    """Build kernels for several kinds of device at once, run and time them on the devices.

    \b
    Start a farm on this machine, then use it from another terminal:
      farm up
      farm devices
      farm build kernels.py --target llvm --out kernels.farm
      farm run kernels.farm my_kernel --device arch=x86_64 --random 1
    """  # noqa: D301 - click's mark


def main() -> None:
    """Run the command line of this process, and exit."""
    _open_streams()
    if "_FARM_COMPLETE" in os.environ:  # a shell asks for completions
        group.main(prog_name="farm")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    json = wants_json(arguments)
    context: click.Context | None = None
    try:
        with group.make_context("farm", list(arguments)) as context:
            group.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (KeyboardInterrupt, click.Abort):
        show_error("INTERRUPTED", "interrupted", json=json and not has_result(context))
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the boundary of the process
        if isinstance(error, BrokenPipeError):
            _forget_streams()
            return EXIT_BROKEN_PIPE
        if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
            traceback.print_exc()
        return _fail(error, json=json and not has_result(context))
    return 0


def _fail(error: Exception, *, json: bool) -> int:
    """Show an error and return its exit code."""
    match error:
        case click.ClickException():
            if json:
                show_error("USAGE", error.format_message(), json=True)
            else:
                with contextlib.suppress(OSError):
                    error.show()
            return error.exit_code
        case FarmError():
            code = error.details.get("code", error.code)
            show_error(code, error.message, error.details, json=json)
            return error.exit_code
        case OSError() if error.filename is not None and error.errno in _USERS:
            what = f"{error.filename}: {error.strerror}; correct the path or its rights"
            show_error("INVALID_INPUT", what, json=json)
            return EXIT_USAGE
        case OSError() if error.filename is not None:
            what = f"{error.filename}: {error.strerror}; look at the disk"
            show_error("INFRASTRUCTURE", what, json=json)
            return EXIT_INTERNAL
        case OSError() if (
            error.errno in _DISKS
        ):  # while reading or writing: Python does not say which file
            what = f"input or output: {error.strerror}; look at the disk"
            show_error("INFRASTRUCTURE", what, json=json)
            return EXIT_INTERNAL
        case UnicodeEncodeError() if error.reason == "surrogates not allowed":
            what = f"{ascii(error.object)[:80]}: holds bytes that are no text in UTF-8; correct it"
            show_error("USAGE", what, json=json)
            return EXIT_USAGE
    kind = type(error).__name__
    hint = f"this is a bug; set {DEBUG_VARIABLE}=1 to see the traceback"
    show_error("INTERNAL", f"{kind}: {error}; {hint}", json=json)
    return EXIT_INTERNAL


def _open_streams() -> None:
    """Make the standard streams take whatever is printed.

    The null device is put where one is closed: a file opened later would take its number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # names may be no text


def _forget_streams() -> None:
    """Keep the interpreter from flushing to a reader that is gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(null, stream.fileno())
