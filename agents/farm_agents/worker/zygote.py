"""The zygote: a single-threaded process that has everything loaded and forks one child for each piece of work.

Owns: forking, reaping, killing whole trees, and saying when a tree is gone.
Does not own: what a child does (`farm_agents.worker.session`, `farm_agents.worker.build`).

Invariant: Exited is sent only when the child and everything that it ever started are gone: the zygote adopts
orphans (PR_SET_CHILD_SUBREAPER), and a direct child that it did not fork itself is an orphan of a dead one.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from farm.errors import InfrastructureError
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

Role = Callable[[socket.socket, Mapping[str, object]], None]
"""What a forked child runs: it serves its channel until the peer ends it."""

_CHANNEL_FD = 3
_POLL_S = 0.01
"""How often dying trees are looked at; nothing tells when an orphan of somebody else is gone."""


@dataclass(slots=True)
class Zygote:
    """The state of a zygote: its children by number, and the dead ones whose trees are not yet gone."""

    control: socket.socket
    role: Role
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
        packet, fds, _, _ = socket.recv_fds(self.control, MAX_PACKET_BYTES, 4)
        if not packet:
            return False
        try:
            match decode(packet):
                case Fork(child, config) if len(fds) == 1 and child not in self.pids:
                    self._fork(child, config, fds[0])
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

    def _fork(self, child: int, config: Mapping[str, object], channel_fd: int) -> None:
        zygote_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(zygote_pid, config, channel_fd)
        self.pids[child] = pid
        self._send(Forked(child, pid))

    def _become_child(self, zygote_pid: int, config: Mapping[str, object], fd: int) -> None:
        code = 1
        try:
            os.setsid()
            processes.adopt_orphans()  # so that killing the child's tree finds what it double-forked
            processes.die_with_parent(zygote_pid)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self.control.detach()
            os.dup2(fd, _CHANNEL_FD)
            os.closerange(_CHANNEL_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            self.role(socket.socket(fileno=_CHANNEL_FD), config)
            code = 0
        except Exception:  # noqa: BLE001 - a process boundary: the parent sees the code, the log the story
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

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
        orphans = [pid for pid in processes.children_of(os.getpid()) if pid not in known]
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
