"""One child process: its logs, its lines, its end.

Owns: starting it in a process group of its own, reading what it prints, ending it.
Does not own: what is run, or when.

Invariant: a child that was started ends when this process does, however that happens; after `end` its whole
process group is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from farm.errors import FarmError, InfrastructureError, InvalidInput, NotAllowed

TAIL_LINES = 15
TAIL_BYTES = 16 << 10
_POLL_S = 0.02
_REFUSALS: dict[int, type[FarmError]] = {cls.exit_code: cls for cls in (InvalidInput, NotAllowed)}
_TETHER = Path(__file__).with_name("tether.py")


class Child:
    """A running child process.

    Parameters
    ----------
    name
        For logs and messages.
    module, arguments
        Runs ``python -m MODULE ARGUMENTS``.
    log_dir
        Gets ``NAME.out`` and ``NAME.log``: its standard output and standard error.
    """

    def __init__(self, name: str, module: str, arguments: Sequence[str], log_dir: Path) -> None:
        self.name = name
        self._out = log_dir / f"{name}.out"
        self.log = log_dir / f"{name}.log"
        self._taken = 0
        command = [sys.executable, "-m", module, *arguments]
        with self._out.open("wb") as out, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def new_lines(self) -> list[str]:
        """Return the whole lines that it printed since the last time."""
        with self._out.open("rb") as file:
            file.seek(self._taken)
            data, newline, _ = file.read().rpartition(b"\n")
        self._taken += len(data) + len(newline)
        return data.decode(errors="replace").splitlines()

    def check_alive(self) -> None:
        """Check that it has not ended.

        Raises
        ------
        FarmError
            It has; the message shows the end of its log. Which error follows its exit code: `InvalidInput` or
            `NotAllowed` if it refused what it was given, else `InfrastructureError`.
        """
        code = self._process.poll()
        if code is not None:
            raise self.failure(f"ended unasked ({_describe_exit(code)})", _REFUSALS.get(code))

    def failure(self, what: str, kind: type[FarmError] | None = None) -> FarmError:
        """Return an error about this child that shows the end of its log."""
        return (kind or InfrastructureError)(
            f"{self.name}: {what}; the end of its log:\n{self._tail()}",
            process=self.name,
            log=str(self.log),
        )

    def end(self, limit_s: float, *, now: Callable[[], float], hurry: Callable[[], bool]) -> bool:
        """End it: SIGTERM, then SIGKILL for its process group, and for all below it if it did not end by itself.

        Parameters
        ----------
        limit_s
            How long it may take to end by itself.
        now
            A steady clock, in seconds.
        hurry
            Tells whether to stop waiting for it at once.

        Returns
        -------
        ok
            Whether it ended by itself.
        """
        self.ask_to_end()
        deadline = now() + limit_s
        while self._process.poll() is None and now() < deadline and not hurry():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_S)
        ended = self._process.returncode is not None
        below = [] if ended else _descendants(self.pid)
        # The group outlives its leader if that left processes behind; its number cannot be taken while it does.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in below:  # some are in process groups of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        return ended

    def ask_to_end(self) -> None:
        """Send SIGTERM, unless it has ended already."""
        if self._process.poll() is None:
            self._process.terminate()

    def _tail(self) -> str:
        data = b""
        for path in (self._out, self.log):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - TAIL_BYTES))
                data += file.read()
        lines = data.decode(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines) or "  (empty)"


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def _descendants(pid: int) -> list[int]:
    """Return every process below one that runs."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.extend(map(int, task.read_text().split()))
    return found[1:]
