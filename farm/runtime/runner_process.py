"""A runner as a child process: its pipes, and how it ended.

Owns: one process that runs an image of `farm.runtime.toolchain`, from start to reaping.
Does not own: starting it again, or what its functions mean (`farm.runtime.qemu`).

Invariant: one thread at a time exchanges; `kill` may come from any other and makes the exchange end
with EOFError or OSError; after `reap` nothing of the process is left.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farm.errors import FarmError, InfrastructureError, KernelCrashed
from farm.runtime import frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from farm.artifact.signature import Signature
    from farm.runtime.interface import Array

EXIT_MEMORY = 4
"""Status of a runner that could not map enough memory."""
_DYING_S = 5.0
_LOG_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back of a call: the first return code; if it was 0, the rest."""

    code: int
    outputs: tuple[Array, ...] = ()
    samples_ns: tuple[int, ...] = ()
    last_code: int = 0


class RunnerProcess:
    """A running child."""

    def __init__(self, command: Sequence[str], work: Path) -> None:
        self._log = work / "stderr"
        with self._log.open("wb") as log:
            try:
                self._child = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=work
                )
            except OSError as error:
                raise InfrastructureError(
                    f"runner: cannot start {command[0]} ({error}); install the Debian package "
                    "qemu-user"
                ) from error

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    def table(self) -> tuple[str, ...]:
        """Ask for the names of the functions that it has."""
        self._send([frames.list_request()])
        (length,) = frames.LENGTH.unpack(self._read(frames.LENGTH.size))
        if length > frames.MAX_NAMES_BYTES:
            raise frames.astray(f"a table of {length} bytes is too long")
        return frames.names_of(bytes(self._read(length)))

    def exchange(
        self, function: int, signature: Signature, inputs: Sequence[Array], repeat: int
    ) -> Reply:
        """Call a function and read the whole reply.

        Raises
        ------
        EOFError, OSError
            The child died or was killed.
        InfrastructureError
            It does not follow the protocol; it must not be used again.
        """
        self._send(frames.call_request(function, signature, inputs, repeat))
        (length,) = frames.LENGTH.unpack(self._read(frames.LENGTH.size))
        code, _ = frames.FIRST.unpack(self._read(frames.FIRST.size))
        if length != frames.reply_bytes(signature, repeat, code):
            raise frames.astray(f"a reply of {length} bytes is not what was asked for")
        if code != 0:
            return Reply(code)
        outputs = frames.empty_outputs(signature)
        for output in outputs:
            self._read_into(output.reshape(-1).view(np.uint8).data)
        samples = np.frombuffer(self._read(8 * repeat), "<u8")
        (last,) = frames.LAST.unpack(self._read(frames.LAST.size))
        return Reply(0, outputs, tuple(int(sample) for sample in samples), last)

    def kill(self) -> None:
        """End the child, whatever it does."""
        self._child.kill()

    def reap(self) -> int:
        """Wait for a child that dies or was killed, close its pipes, return its wait status."""
        try:
            self._child.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return self._child.returncode

    def death_error(self, symbol: str) -> FarmError:
        """Reap a child that stopped talking and return what that means.

        Notes
        -----
        qemu-user ends itself with the signal that ended its guest, so the wait status tells it.
        """
        status = self.reap()
        if status < 0:
            name = _signal_name(-status)
            return KernelCrashed(f"{symbol}: crashed ({name}); look at the kernel", signal=name)
        if status == EXIT_MEMORY:
            return InfrastructureError(f"{symbol}: out of memory under qemu; use smaller arrays")
        return frames.astray(f"ended with status {status} ({self._log_tail() or 'no output'})")

    def _send(self, pieces: Iterable[bytes | memoryview]) -> None:
        pipe = self._child.stdin
        if pipe is None:
            raise EOFError
        for piece in pieces:
            pipe.write(piece)
        pipe.flush()

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        self._read_into(memoryview(data))
        return data

    def _read_into(self, view: memoryview) -> None:
        pipe = self._child.stdout
        while view:
            got = pipe.readinto(view) if pipe else 0  # type: ignore[attr-defined]
            if not got:
                raise EOFError
            view = view[got:]

    def _log_tail(self) -> str:
        try:
            return self._log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
