"""Zygotes and their children as the agent sees them.

Owns: starting a zygote process, asking it to fork and to kill, one confined child that waits ahead of need, proving
trees gone. Does not own: a child's channel and sandbox (`farm_agents.child`), or what goes through the channel
(`farm_agents.session`, `farm_agents.builder`).

Invariant: `Child.exited` is done only when the child and everything that it started are gone, also if the zygote
itself has died; a child that waits has run nothing yet, and is given away once.
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
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farm.core.ids import IdSource
from farm.core.tasks import finish
from farm.errors import InfrastructureError
from farm_agents.child import Child
from farm_agents.sandbox.bubblewrap import HOME
from farm_agents.sandbox.output import OutputLog
from farm_agents.sandbox.running import Rooms, Sandbox
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

START_LIMIT_S = 90.0
FORK_LIMIT_S = 10.0
END_LIMIT_S = 5.0
REFILL_AFTER_S = 0.05
"""How long the next spare child is not begun after one was given away: making it would slow that one down."""
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
class Zygote:
    """A running zygote. Make one with `Zygote.start`."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    mark: str
    ready: asyncio.Future[int]
    rooms: Rooms | None
    ahead: Mapping[str, object] | None = None
    spares: int = 1
    _children: dict[int, Child] = field(default_factory=dict)
    _forked: dict[int, asyncio.Future[int]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _spares: deque[asyncio.Task[Child]] = field(default_factory=deque)
    _refill: asyncio.TimerHandle | None = None
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _ending: asyncio.Task[None] | None = None

    @staticmethod
    async def start(
        role: str,
        log: Path,
        new_id: IdSource,
        warm: str = "",
        held_fds: tuple[int, ...] = (),
        rooms: Rooms | None = None,
        ahead: Mapping[str, object] | None = None,
        spares: int = 1,
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
        rooms
            Makes a sandbox for each child; None: children are not confined.
        ahead
            What every child will be told by `fork`, paths of the host aside: one in a sandbox is told while it waits,
            so that it is ready when it is needed.
        spares
            How many children wait in a sandbox.

        Raises
        ------
        InfrastructureError
            It did not become ready; the log says why.
        """
        zygote = _spawn(role, log, new_id("worker"), warm, held_fds, rooms)
        zygote.ahead, zygote.spares = ahead, spares
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
        if rooms is not None:
            zygote._prepare_spares()
        return zygote

    @property
    def alive(self) -> bool:
        """Whether it still serves."""
        return self._ending is None

    def serves(self, rooms: Rooms | None) -> bool:
        """Whether it may go on, where children are to be confined in `rooms` now; while one works it may."""
        if not self.alive:
            return False
        works = any(it.given and not it.exited.done() for it in self._children.values())
        return self.rooms is rooms or works

    async def fork(self, config: Mapping[str, object]) -> Child:
        """Fork a child that runs the zygote's role with `config`.

        Raises
        ------
        InfrastructureError
            The zygote is gone or does not answer.
        """
        child = await (self._make(None) if self.rooms is None else self._take_spare())
        await child.begin(config)
        return child

    async def wait_for_spare(self) -> None:
        """Wait until a child in a sandbox waits to be forked; it is not given away yet. Raises as `fork`."""
        async with self._taking:
            await self._usable_spare()

    async def _take_spare(self) -> Child:
        async with self._taking:
            child = await self._usable_spare()
            child.given = True
            self._spares.popleft()
            loop = asyncio.get_running_loop()
            self._refill = loop.call_later(REFILL_AFTER_S, self._prepare_spares)
            return child

    async def _usable_spare(self) -> Child:
        """Return the child that has waited longest."""
        while True:
            self._check_alive()
            self._prepare_spares()
            task = self._spares[0]
            try:
                child = await asyncio.shield(task)
            except Exception:  # such as no descriptor left: the next one may be made
                self._spares.remove(task)
                raise
            if child.usable:
                return child
            self._spares.remove(task)

    def _prepare_spares(self) -> None:
        if self._refill is not None:
            self._refill.cancel()
            self._refill = None
        while self.alive and len(self._spares) < self.spares:
            task = asyncio.create_task(self._make_confined())
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._spares.append(task)

    async def _make_confined(self) -> Child:
        if self.rooms is None:
            raise InfrastructureError("worker: no sandbox for this zygote; start it again")
        child = await self._make(await self.rooms.open(f"{self.mark}.{next(self._numbers)}"))
        if self.ahead is not None:
            await child.tell(self.ahead)
        return child

    async def _make(self, sandbox: Sandbox | None) -> Child:
        """Have the zygote fork a child; the sandbox is then the child's to end."""
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            if sandbox is not None:
                await finish(sandbox.end())
            raise
        child = Child(number, reader, writer, loop.create_future(), self, sandbox)
        child.given = sandbox is None
        self._children[number] = child
        self._forked[number] = loop.create_future()
        try:
            with theirs:
                self._ask_for(child, theirs.fileno())
            async with asyncio.timeout(FORK_LIMIT_S):
                child.pid = await self._forked[number]
        except (TimeoutError, InfrastructureError, OSError) as error:
            if number in self._children:  # else it could not join its sandbox, and that has ended
                with contextlib.suppress(OSError):
                    self.control.shutdown(socket.SHUT_RDWR)
                self._lost()
            raise InfrastructureError(f"worker: no child ({error}); try again") from error
        finally:
            del self._forked[number]
        return child

    def _ask_for(self, child: Child, channel_fd: int) -> None:
        """Send what the zygote needs for a child."""
        self._check_alive()
        if child.sandbox is None or self.rooms is None:
            self._send(Fork(child.number, {}), channel_fd)
            return
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        child.output = OutputLog(read_fd, self.rooms.limits.output_bytes)
        procs = child.sandbox.group.open_procs()
        try:
            fork = Fork(child.number, _confinement(self.rooms))
            self._send(fork, channel_fd, write_fd, child.sandbox.init_fd, *procs)
        finally:
            for fd in (write_fd, *procs):
                os.close(fd)

    def _check_alive(self) -> None:
        if not self.alive:
            raise InfrastructureError("worker: its zygote is gone; try again")

    def kill(self, number: int) -> None:
        """Ask for a child to be killed; its `exited` tells when it is gone."""
        with contextlib.suppress(
            InfrastructureError
        ):  # then the zygote is ending, and all of it dies
            self._send(Kill(number))

    async def kill_all(self) -> None:
        """Kill every child that works; return when all their trees are proved gone."""
        children = [child for child in self._children.values() if child.given]
        for child in children:
            child.start_to_kill()
        if children:
            await asyncio.wait([child.exited for child in children])

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
            case Forked(number, pid) if number in self._children:
                if number in self._forked:  # else who asked for it has given up; it is being killed
                    _resolve(self._forked[number], pid)
            case Exited(number, status) if number in self._children:
                self._note_exit(self._children[number], status)
            case _:
                self._lost()

    def _note_exit(self, child: Child, status: int) -> None:
        forked = self._forked.get(child.number)
        if forked is not None and not forked.done():
            forked.set_exception(InfrastructureError("it could not be confined; see its log"))
            forked.exception()
            del self._children[child.number]
        task = asyncio.create_task(self._bury(child, status))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self, child: Child, status: int) -> None:
        await child.ended(status)
        self._children.pop(child.number, None)

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
        if self._refill is not None:
            self._refill.cancel()
        if self._spares:
            await asyncio.wait(self._spares)
        for child in list(self._children.values()):
            await self._bury(child, signal.SIGKILL)
        if self._tasks:
            await asyncio.wait(self._tasks)


def describe_status(status: int) -> dict[str, str]:
    """Return a wait status as facts: ``{"signal": "SIGSEGV"}`` or ``{"exit_code": "1"}``."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return {"signal": signal.Signals(number).name}
        except ValueError:
            return {"signal": f"SIG{number}"}
    return {"exit_code": str(os.waitstatus_to_exitcode(status))}


def _confinement(rooms: Rooms) -> dict[str, object]:
    """Return the configuration of a confined child's fork."""
    limits = rooms.limits
    values = {
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_MSGQUEUE": 0,
    }
    if any(name.startswith("memory") for name in rooms.hierarchies.missing):
        values["RLIMIT_DATA"] = (
            limits.memory_bytes
        )  # for each process alone, but better than nothing
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(HOME),
        "LANG": "C.UTF-8",
        "XDG_CACHE_HOME": str(rooms.view.made.parent),
        **_ONE_THREAD,
    }
    return {"limits": values, "environment": environment}


def _spawn(
    role: str, log: Path, mark: str, warm: str, held_fds: tuple[int, ...], rooms: Rooms | None
) -> Zygote:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    # Not every variable of ours, since some may hold secrets: only how tests find what they started.
    environment |= {k: v for k, v in os.environ.items() if k.startswith("KERNEL_FARM_TEST_")}
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
    zygote = Zygote(process, ours, mark, loop.create_future(), rooms)
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
