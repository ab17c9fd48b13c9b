"""Zygotes and their children as the agent sees them.

Owns: starting a zygote process, asking it to fork and to kill, the children's channels, proving a tree gone.
Does not own: what goes through a channel (`farm_agents.session`, `farm_agents.builder`).

Invariant: `Child.exited` is done only when the child and everything that it started are gone, also if the zygote
itself has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farm.core.ids import IdSource
from farm.errors import InfrastructureError
from farm_agents.tasks import finish
from farm_agents.worker import processes
from farm_agents.worker.control import (
    MAX_PACKET_BYTES,
    Exited,
    Fork,
    Forked,
    Kill,
    Message,
    Ready,
    decode,
    encode,
)
from farm_agents.worker.frames import encode_length, read_frame_async

START_LIMIT_S = 90.0
FORK_LIMIT_S = 10.0
END_LIMIT_S = 5.0
POLL_S = 0.02

_INHERITED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER"),
    *("PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "XDG_CACHE_HOME"),
)
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(slots=True)
class Child:
    """One forked child: its channel, and `exited`, done with its wait status when its tree is gone."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    exited: asyncio.Future[int]
    zygote: Zygote

    @property
    def usable(self) -> bool:
        """Whether it can be expected to answer."""
        return self.zygote.alive and not self.exited.done()

    async def kill(self) -> int:
        """Kill the child with its whole tree; return its wait status when they are gone."""
        if not self.exited.done() and self.zygote.alive:
            self.zygote.kill(self.number)
        return await asyncio.shield(self.exited)

    async def send(self, data: bytes) -> None:
        """Send one frame; a child that is gone is seen when its answer is read."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(encode_length(len(data)))
            self.writer.write(data)
            await self.writer.drain()

    async def receive(self) -> bytes | None:
        """Return the next frame, or None when the child has closed its channel.

        Raises
        ------
        InfrastructureError
            The frame is over the limit.
        """
        return await read_frame_async(self.reader)


@dataclass(slots=True)
class Zygote:
    """A running zygote. Make one with `Zygote.start`."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    mark: str
    ready: asyncio.Future[int]
    _exits: dict[int, asyncio.Future[int]] = field(default_factory=dict)
    _forked: dict[int, asyncio.Future[int]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _ending: asyncio.Task[None] | None = None

    @staticmethod
    async def start(
        role: str, log: Path, new_id: IdSource, warm: str = "", held_fds: tuple[int, ...] = ()
    ) -> Zygote:
        """Start a zygote and wait until it is warm.

        Parameters
        ----------
        role
            ``session`` or ``build``.
        log
            File that its own messages are appended to.
        warm
            What it warms up: a kind of loader for sessions, families of targets for builds.
        held_fds
            Descriptors that it keeps open (locks that have to last as long as its tree).

        Raises
        ------
        InfrastructureError
            It did not become ready; the log says why.
        """
        zygote = _spawn(role, log, new_id("worker"), warm, held_fds)
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await asyncio.shield(zygote.ready)
        except (TimeoutError, InfrastructureError) as error:
            await zygote.close()
            tail = await asyncio.to_thread(_tail, log)
            raise InfrastructureError(
                f"worker {role}: did not start ({tail or 'no message'}); see {log}"
            ) from error
        except BaseException:
            await finish(zygote.close())
            raise
        return zygote

    @property
    def alive(self) -> bool:
        """Whether it still serves."""
        return self._ending is None

    async def fork(self, config: Mapping[str, object]) -> Child:
        """Fork a child that runs the zygote's role with `config`.

        Raises
        ------
        InfrastructureError
            The zygote is gone or does not answer.
        """
        if not self.alive:
            raise InfrastructureError("worker: its zygote is gone; try again")
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        exited = self._exits[number] = loop.create_future()
        self._forked[number] = loop.create_future()
        try:
            with theirs:
                self._send(Fork(number, config), theirs.fileno())
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            exited.add_done_callback(lambda _: writer.close())  # it wrote all that it ever will
            child = Child(number, reader, writer, exited, self)
            async with asyncio.timeout(FORK_LIMIT_S):
                await self._forked[number]
        except TimeoutError as error:
            self.control.shutdown(socket.SHUT_RDWR)
            self._lost()
            raise InfrastructureError(
                f"worker: no child after {FORK_LIMIT_S:g} s; its zygote hangs; try again"
            ) from error
        finally:
            del self._forked[number]
        return child

    def kill(self, number: int) -> None:
        """Ask for a child to be killed; its `exited` tells when it is gone."""
        with contextlib.suppress(
            InfrastructureError
        ):  # then the zygote is ending, and all of it dies
            self._send(Kill(number))

    async def kill_all(self) -> None:
        """Kill every child, one that is being forked included; return when all trees are proved gone."""
        exits = dict(self._exits)
        for number in exits if self.alive else ():
            self.kill(number)
        if exits:
            await asyncio.wait(exits.values())

    async def close(self) -> None:
        """End the zygote and everything below it; return when all of it is proved gone."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self._lost()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _send(self, message: Message, *fds: int) -> None:
        try:
            socket.send_fds(self.control, [encode(message)], fds)
        except OSError as error:
            raise InfrastructureError(
                f"worker: its zygote cannot be reached ({error.strerror}); try again"
            ) from error

    def _receive(self) -> None:
        try:
            packet = self.control.recv(MAX_PACKET_BYTES)
            message = decode(packet) if packet else None
        except BlockingIOError:
            return
        except (OSError, InfrastructureError):
            message = None
        match message:
            case Ready(pid):
                _resolve(self.ready, pid)
            case Forked(number, pid) if number in self._exits:
                if number in self._forked:  # else who asked for it has given up; it is being killed
                    _resolve(self._forked[number], pid)
            case Exited(number, status) if number in self._exits:
                _resolve(self._exits.pop(number), status)
            case _:
                self._lost()

    def _lost(self) -> None:
        if self._ending is not None:
            return
        asyncio.get_running_loop().remove_reader(self.control.fileno())
        error = InfrastructureError("worker: its zygote has ended; try again")
        for future in (self.ready, *self._forked.values()):
            if not future.done():
                future.set_exception(error)
                future.exception()  # somebody may or may not wait for it
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + END_LIMIT_S
        while self.process.poll() is None and loop.time() < deadline:
            await asyncio.sleep(POLL_S)
        self.process.kill()  # no effect on one that was waited for
        while self.process.poll() is None or (left := processes.marked(self.mark)):
            processes.kill(left if self.process.returncode is not None else ())
            await asyncio.sleep(POLL_S)
        self.control.close()
        for exited in self._exits.values():
            _resolve(exited, signal.SIGKILL)
        self._exits.clear()


def describe_status(status: int) -> dict[str, str]:
    """Return a wait status as facts: ``{"signal": "SIGSEGV"}`` or ``{"exit_code": "1"}``."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return {"signal": signal.Signals(number).name}
        except ValueError:
            return {"signal": f"SIG{number}"}
    return {"exit_code": str(os.waitstatus_to_exitcode(status))}


def _spawn(role: str, log: Path, mark: str, warm: str, held_fds: tuple[int, ...]) -> Zygote:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment |= {k: v for k, v in os.environ.items() if k.startswith("KERNEL_FARM_")}
    environment |= _ONE_THREAD | {processes.MARK: mark}
    command = [sys.executable, "-P", "-m", "farm_agents.worker", "--role", role]
    command += ["--warm", warm] if warm else []
    command += ["--control-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())]
    with theirs, log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=(theirs.fileno(), *held_fds),
            cwd="/",
        )
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    zygote = Zygote(process, ours, mark, loop.create_future())
    loop.add_reader(ours.fileno(), zygote._receive)
    return zygote


def _resolve(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:500] if lines else ""
