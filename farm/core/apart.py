"""Part of the farm in a process of its own, where it calls what others wrote.

Owns: that process and its group, the time limit, how much of what it says is kept, and the form of an answer: one JSON
object a line. Does not own: what is asked, or what an answer means.

Invariant: when `run_apart` returns or raises, the process and all of its group are gone, and the process does not live
longer than the one that started it; of what they print, `KEPT_BYTES` and the answer are held at most.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from farm.core.clock import SystemClock

KEPT_BYTES = 4096
"""Of what the process printed: the end."""
MAX_ANSWER_BYTES = 1 << 20
_POLL_S = 0.05
_DRAIN_S = 1.0  # for what was printed by the time the process ended
_PART_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a process.

    Attributes
    ----------
    status
        Its exit code, negative for a signal; None: it was killed at its time limit.
    answer
        The last whole line that it answered with, as JSON; None: there is none, or it is no object.
    said
        The end of what it printed.
    """

    status: int | None
    answer: dict[str, Any] | None
    said: str

    @property
    def how(self) -> str:
        """How it ended, in words: ``exit code 3``, ``SIGSEGV``."""
        if self.status is None:
            return "time limit"
        if self.status >= 0:
            return f"exit code {self.status}"
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


def run_apart(
    module: str,
    arguments: Sequence[str] = (),
    *,
    limit_s: float,
    given: bytes = b"",
    most_bytes: int = MAX_ANSWER_BYTES,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> Ended:
    """Run ``python -m MODULE`` in a process of its own (of which this module is the first part) and wait for its end.

    Parameters
    ----------
    given
        What it reads from standard input.
    most_bytes
        Of one answer; what is longer is none.
    tell
        Called with each answer as it comes.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(os.getpid()), module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    talk = _Talk(process, given, most_bytes, tell)
    try:
        in_time = talk.until_end(limit_s)
        _kill_group(process)
        status = process.wait()
        talk.drain()
    finally:
        _kill_group(process)
        process.wait()
        talk.close()
    return Ended(status if in_time else None, talk.answer, talk.said)


def answers() -> Callable[[dict[str, Any]], None]:
    """Return what answers whoever started this process; from now on, what is printed is no answer."""
    own = os.dup(1)
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        data = memoryview(f"{json.dumps(value)}\n".encode())
        while data:
            data = data[os.write(own, data) :]

    return answer


class _Talk:
    """What goes in and out of one process."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        given: bytes,
        most_bytes: int,
        tell: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self.answer: dict[str, Any] | None = None
        self._process, self._most_bytes, self._tell = process, most_bytes, tell
        self._given, self._line, self._said = memoryview(given), bytearray(), bytearray()
        self._too_long = False
        self._ready = selectors.DefaultSelector()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._pipes = (process.stdin, process.stdout, process.stderr)
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        self._ready.register(process.stdin, selectors.EVENT_WRITE, self._write)
        self._ready.register(process.stdout, selectors.EVENT_READ, self._hear)
        self._ready.register(process.stderr, selectors.EVENT_READ, self._overhear)

    @property
    def said(self) -> str:
        """The end of what the process printed."""
        return self._said.decode(errors="replace").strip()

    def until_end(self, limit_s: float) -> bool:
        """Talk until the process ends; tell whether it did so in time."""
        clock = SystemClock()
        deadline = clock.now() + limit_s
        while not _has_ended(self._process):
            left = deadline - clock.now()
            if left <= 0:
                return False
            self._once(min(left, _POLL_S))
        return True

    def drain(self) -> None:
        """Take what is left in the pipes; somebody who left the group may hold them open, and go on printing."""
        clock = SystemClock()
        deadline = clock.now() + _DRAIN_S
        while self._once(0) and clock.now() < deadline:
            pass

    def close(self) -> None:
        """Close the pipes."""
        self._ready.close()
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _once(self, timeout_s: float) -> bool:
        """Do what can be done now; tell whether there was anything."""
        events = self._ready.select(timeout_s)
        for key, _ in events:
            key.data()
        return bool(events)

    def _write(self) -> None:
        pipe = self._pipes[0]
        try:
            self._given = self._given[os.write(pipe.fileno(), self._given[:_PART_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want it
            self._given = self._given[:0]
        if not self._given:
            self._ready.unregister(pipe)
            pipe.close()

    def _read(self, number: int) -> bytes:
        pipe = self._pipes[number]
        part = os.read(pipe.fileno(), _PART_BYTES)
        if not part:
            self._ready.unregister(pipe)
        return part

    def _overhear(self) -> None:
        self._said += self._read(2)
        del self._said[:-KEPT_BYTES]

    def _hear(self) -> None:
        *lines, rest = self._read(1).split(b"\n")
        for line in lines:
            self._add(line)
            self._finish()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._too_long = self._too_long or len(self._line) + len(part) > self._most_bytes
        if not self._too_long:
            self._line += part

    def _finish(self) -> None:
        line, too_long = bytes(self._line), self._too_long
        self._line.clear()
        self._too_long = False
        try:
            value = None if too_long else json.loads(line)
        except ValueError:
            value = None
        self.answer = value if isinstance(value, dict) else None
        if self.answer is not None and self._tell is not None:
            self._tell(self.answer)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether a process has ended; it stays a zombie, so that nobody else gets its number."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # not waited for yet, so the number is still its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _main(parent: int, module: str, *arguments: str) -> None:
    """Run a module, in a process that ends with its parent (Linux; elsewhere it ends at its own pace)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before that
            os._exit(1)
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), *sys.argv[2:])
