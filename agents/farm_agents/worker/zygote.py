"""The zygote: a single-threaded process that has everything loaded and forks one child for each piece of work.

Owns: forking, reaping, killing whole trees, and saying when a tree is gone.
Does not own: what a child does (`farm_agents.worker.session`, `farm_agents.worker.build`).

A child in a sandbox is forked into its pid namespace, and joins all else of it before it does anything. A zygote that
may not decide where its children go (one without privileges) forks in two steps: a process in between joins the sandbox
and forks once more, since only children enter a pid namespace that is joined; then it ends, and the zygote adopts its
child. The zygote itself is in no sandbox and never runs code of strangers.

Invariant: Exited is sent only when the child and everything that it ever started are gone: the zygote adopts
orphans (PR_SET_CHILD_SUBREAPER), and a direct child that it did not fork itself is an orphan of a dead one. What a
child leaves inside a sandbox is the agent's to end, with the sandbox.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import resource
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from farm.errors import InfrastructureError
from farm_agents.sandbox import confine
from farm_agents.sandbox.seccomp import make_filter, supports
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
from farm_agents.worker.frames import read_frame

Role = Callable[[socket.socket, Mapping[str, object]], None]
"""What a forked child runs: it serves its channel until the peer ends it."""

_CHANNEL_FD = 3
_MAX_FDS = 16
SPARE_NAME = "farm-spare"
"""What people see of a child that waits for work; its role names it when it has some, such as ``farm-build``."""
_ROOM_FDS = 3
"""Before the ``cgroup.procs`` of a sandboxed child: its channel, its output, its sandbox's first process."""
_POLL_S = 0.01
"""How often dying trees are looked at; nothing tells when an orphan of somebody else is gone."""


@dataclass(slots=True)
class Zygote:
    """The state of a zygote: its children by number, and the dead ones whose trees are not yet gone."""

    control: socket.socket
    role: Role
    name: str
    pids: dict[int, int] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)

    def serve(self) -> None:
        """Serve the agent until it ends the control socket or SIGTERM comes; then kill every tree and return."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        stopped: list[int] = []
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the agent
        processes.adopt_orphans()
        with contextlib.suppress(InfrastructureError):  # a child that needs it will say so
            _filter()  # once, for all of them
        self._send(Ready(os.getpid()))
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while not stopped:
                ready = selector.select(_POLL_S if self.dead else None)
                if any(key.fileobj is self.control for key, _ in ready) and not self._receive():
                    break
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                self._reap()
        self._end()

    def _receive(self) -> bool:
        packet, fds, _, _ = socket.recv_fds(self.control, MAX_PACKET_BYTES, _MAX_FDS)
        if not packet:
            return False
        try:
            match decode(packet):
                case Fork(child, config) if fds and child not in self.pids:
                    self._fork(child, config, fds)
                case Kill(child):
                    self._kill(child)
                case other:
                    raise InfrastructureError(
                        f"zygote: unexpected message ({other}); start it again"
                    )
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _fork(self, child: int, config: Mapping[str, object], fds: list[int]) -> None:
        zygote_pid = os.getpid()
        if config:
            pid = self._fork_inside(config, fds)
        elif (pid := os.fork()) == 0:
            self._become(lambda: self._serve_plainly(zygote_pid, fds[0]))
        if pid == 0:
            self._send(Exited(child, 1 << 8))  # it could not join its sandbox
            return
        self.pids[child] = pid
        self._send(Forked(child, pid))

    def _fork_inside(self, config: Mapping[str, object], fds: list[int]) -> int:
        """Fork a child in a sandbox; return its process id, 0 if the sandbox cannot be joined."""
        if len(fds) < _ROOM_FDS:
            raise InfrastructureError("zygote: a sandbox came without descriptors; start it again")
        read_fd, write_fd = os.pipe()
        try:
            with confine.children_inside(fds[_ROOM_FDS - 1]) as is_inside:
                pid = os.fork()
                if pid == 0:
                    work = self._enter if is_inside else self._enter_by_another
                    self._become(lambda: work(config, fds, write_fd))
        except OSError:  # such as that the sandbox has ended
            traceback.print_exc()
            pid = 0
        finally:
            os.close(write_fd)
        told = os.read(read_fd, 32) if pid else b""
        os.close(read_fd)
        if pid and not (told and is_inside):  # it has failed, or it was the process in between
            os.waitpid(pid, 0)
        return int(told or 0) or (pid if told else 0)

    def _enter(self, config: Mapping[str, object], fds: list[int], answer_fd: int) -> None:
        confine.join(fds[_ROOM_FDS:], fds[_ROOM_FDS - 1])
        os.write(answer_fd, b"0")  # the zygote knows its id
        self._serve_inside(config, fds)

    def _enter_by_another(
        self, config: Mapping[str, object], fds: list[int], answer_fd: int
    ) -> None:
        confine.join(fds[_ROOM_FDS:], fds[_ROOM_FDS - 1])
        pid = os.fork()
        if pid == 0:
            self._become(lambda: self._serve_inside(config, fds))
        os.write(answer_fd, str(pid).encode())

    def _become(self, work: Callable[[], None]) -> None:
        """Do `work` as a process that was just forked, and end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            work()
            code = 0
        except Exception:  # noqa: BLE001 - a process boundary: the parent sees the code, the log the story
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _serve_plainly(self, zygote_pid: int, channel_fd: int) -> None:
        os.setsid()
        processes.adopt_orphans()  # so that killing the child's tree finds what it double-forked
        processes.die_with_parent(zygote_pid)
        channel = self._only_channel(channel_fd)
        config = _read_config(channel)
        if config is not None:
            processes.set_name(f"farm-{self.name}")
            self.role(channel, config)

    def _serve_inside(self, config: Mapping[str, object], fds: list[int]) -> None:
        limits = config.get("limits")
        environment = config.get("environment")
        if not isinstance(limits, dict) or not isinstance(environment, dict):
            raise InfrastructureError("zygote: a sandbox came without limits; start it again")
        os.setsid()
        for number in (1, 2):
            os.dup2(fds[1], number)
        channel = self._only_channel(fds[0])
        os.environ.clear()
        os.environ.update(environment)
        confine.give_up(limits, _filter())
        processes.set_name(SPARE_NAME)
        own = _read_config(channel)  # comes after a process in between has ended
        if own is not None:
            processes.die_with_parent(os.getppid())
            self.role(channel, own)

    def _only_channel(self, channel_fd: int) -> socket.socket:
        """Close every descriptor but 0, 1, 2 and the channel, and let signals do what they do by default."""
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        self.control.detach()
        os.dup2(channel_fd, _CHANNEL_FD)
        os.closerange(_CHANNEL_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        return socket.socket(fileno=_CHANNEL_FD)

    def _kill(self, child: int) -> None:
        pid = self.pids.get(child)
        if pid is not None:  # else it ended by itself; Exited is on its way
            processes.kill([pid, *processes.descendants_of(pid)])

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            for child, child_pid in list(self.pids.items()):
                if child_pid == pid:
                    del self.pids[child]
                    self.dead[child] = status
        if self.dead and not self._kill_orphans():
            for child, status in self.dead.items():
                self._send(Exited(child, status))
            self.dead.clear()

    def _kill_orphans(self) -> bool:
        known = set(self.pids.values())
        orphans = [pid for pid in processes.own_children() if pid not in known]
        for pid in orphans:
            processes.kill([pid, *processes.descendants_of(pid)])
        return bool(orphans)

    def _end(self) -> None:
        while True:
            processes.kill(processes.descendants_of(os.getpid()))
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def _send(self, message: Message) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # seen as end of file next
            self.control.send(encode(message))


@functools.cache
def _filter() -> bytes:
    arch = platform.machine()
    if not supports(arch):
        raise InfrastructureError(f"sandbox: no system call filter for {arch}; use another host")
    return make_filter(arch)


def _read_config(channel: socket.socket) -> dict[str, object] | None:
    """Return the configuration, which is the first frame; None if the agent does not need the child any more."""
    frame = read_frame(channel)
    if frame is None:
        return None
    value = json.loads(frame)
    if not isinstance(value, dict):
        raise InfrastructureError("worker: malformed configuration; start the agent again")
    return value
