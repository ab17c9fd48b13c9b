"""One running sandbox: an empty room of namespaces with its control group, ready to be joined.

Owns: starting it, its descriptors, and its end with the proof that nobody is left in it.
Does not own: its command line (`bubblewrap`), its group's files (`cgroups`), or who joins (the worker's zygote).

Invariant: when `end` returns, the first process of the pid namespace is gone, which the kernel lets happen only after
every other process of it, and the control group was empty and is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from farm.errors import InfrastructureError
from farm_agents.sandbox.bubblewrap import OUT, View, command
from farm_agents.sandbox.cgroups import Group, Hierarchies
from farm_agents.sandbox.limits import Limits

START_LIMIT_S = 10.0
MAX_STATUS_BYTES = 64 << 10
_POLL_S = 0.005
_KILL_AGAIN_S = 0.5
_FLAGS, _EXITING = 6, 0x4
"""Where flags are in what the kernel says of a process after its name, and the one of those that end."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """How rooms are made on this host."""

    bwrap: Path
    view: View
    limits: Limits
    hierarchies: Hierarchies

    async def open(self, name: str) -> Sandbox:
        """Start a room; `name` is unique among the rooms of this process.

        Raises
        ------
        InfrastructureError
            It does not start; nothing is left of it.
        """
        try:
            group = self.hierarchies.make(name, self.limits)
        except OSError as error:
            raise InfrastructureError(
                f"sandbox {name}: no control group ({error}); look at the host's cgroups"
            ) from error
        try:
            return await _start(name, self, group)
        except BaseException:
            group.remove()
            raise


@dataclass(slots=True)
class Sandbox:
    """A running room; make one with `Rooms.open`.

    Attributes
    ----------
    init_fd
        A pidfd of the namespaces' first process: what `setns` takes, and what tells the end.
    out_fd
        The folder of results inside, for the agent.
    fell
        Whether it ended by itself, before anybody killed it: what keeps it open was killed, and all inside with it.
    """

    name: str
    process: subprocess.Popen[bytes]
    init_fd: int
    out_fd: int
    group: Group
    fell: bool = False
    _is_killed: bool = False

    def kill(self) -> None:
        """Kill the first process, and with it every other one of the room."""
        self._note_fall()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.init_fd, signal.SIGKILL)

    async def end(self, before_removal: Callable[[], None] = lambda: None) -> dict[str, str]:
        """Kill everything; return when all of it is proved gone, with the limit that it had passed, if any.

        Parameters
        ----------
        before_removal
            Called when the control group is empty and still there.
        """
        self._note_fall()
        loop = asyncio.get_running_loop()
        again_at = loop.time()
        while not _has_ended(self.init_fd) or self.process.poll() is None or self.group.pids():
            if loop.time() >= again_at:
                self.kill()
                self.group.kill()
                again_at = loop.time() + _KILL_AGAIN_S
            await asyncio.sleep(_POLL_S)
        exceeded = self.group.exceeded()
        before_removal()
        while not self.group.remove():  # the kernel may need a moment after the last process
            await asyncio.sleep(_POLL_S)
        self._close()
        return exceeded

    def _note_fall(self) -> None:
        """Note whether it ends already, unless it was killed before."""
        if not self._is_killed:
            self._is_killed, self.fell = True, _is_ending(self.init_fd)

    def _close(self) -> None:
        for fd in (self.init_fd, self.out_fd):
            os.close(fd)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


async def _start(name: str, rooms: Rooms, group: Group) -> Sandbox:
    status_fd, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        # Started by this thread, which lives as long as the agent: the room dies with the thread that made it.
        process = subprocess.Popen(
            command(rooms.bwrap, rooms.view, theirs),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(theirs,),
            env={k: v for k, v in os.environ.items() if k.startswith("KERNEL_FARM_TEST_")},
            cwd="/",
        )
    except OSError as error:
        os.close(status_fd)
        raise InfrastructureError(
            f"sandbox {name}: bubblewrap does not start ({error}); look at {rooms.bwrap}"
        ) from error
    finally:
        os.close(theirs)
    try:
        async with asyncio.timeout(START_LIMIT_S):
            init_pid = await _first_pid(status_fd, process)
            await _wait_built(process)
        return _opened(name, process, init_pid, group)
    except BaseException as error:
        process.kill()
        story = await asyncio.to_thread(_wait, process)
        if isinstance(error, (TimeoutError, OSError, ValueError)):
            raise InfrastructureError(
                f"sandbox {name}: bubblewrap made no room ({story or error}); see the guide, Isolation"
            ) from error
        raise
    finally:
        os.close(status_fd)
        if process.stderr is not None:
            process.stderr.close()


def _opened(name: str, process: subprocess.Popen[bytes], init_pid: int, group: Group) -> Sandbox:
    init_fd = os.pidfd_open(init_pid)
    try:
        path = f"/proc/{init_pid}/root{OUT}"
        out_fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except BaseException:
        os.close(init_fd)
        raise
    return Sandbox(name, process, init_fd, out_fd, group)


async def _first_pid(status_fd: int, process: subprocess.Popen[bytes]) -> int:
    text = b""
    while b"\n" not in text:
        await _readable(status_fd)
        data = os.read(status_fd, 4096)
        text += data
        if not data or len(text) > MAX_STATUS_BYTES:
            raise ValueError("it ended early")
    value = json.loads(text.splitlines()[0])
    if not isinstance(value, dict) or type(value.get("child-pid")) is not int:
        raise ValueError("it told no process id")
    pid: int = value["child-pid"]
    return pid


async def _wait_built(process: subprocess.Popen[bytes]) -> None:
    """Wait until the keeper inside echoes a byte: it is started last."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("it has no pipes")
    process.stdin.write(b"\n")
    process.stdin.flush()
    await _readable(process.stdout.fileno())
    if os.read(process.stdout.fileno(), 1) != b"\n":
        raise ValueError("its keeper ended")


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended (a pidfd is readable from then on)."""
    with select.epoll() as poll:
        poll.register(pidfd, select.EPOLLIN)
        return bool(poll.poll(0))


def _is_ending(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended, or is at it: the first of a room ends after all others."""
    if _has_ended(pidfd):
        return True
    try:
        (pid,) = re.findall(r"^Pid:\s*(\d+)$", Path(f"/proc/self/fdinfo/{pidfd}").read_text(), re.M)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return True
    return bool(int(fields[_FLAGS]) & _EXITING)


def _wait(process: subprocess.Popen[bytes]) -> str:
    """Wait for a process that was killed; return the end of what it told."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    story = process.stderr.read(4096) if process.stderr else b""
    process.wait()
    return story.decode(errors="replace").strip()[-500:]
