"""One forked child of a zygote, as the agent sees it.

Owns: its channel, its sandbox, what it prints, the files that it leaves as results, and its end.
Does not own: forking it (`farm_agents.zygotes`), or what goes through the channel.

Invariant: `Child.exited` is done only when the child and everything that it started are gone; a result is opened
without following any link, so that a hostile child cannot have the agent read anything but what the child wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from farm.core.digest import Digest, canonical_json
from farm.errors import InfrastructureError
from farm_agents.sandbox.bubblewrap import CACHE, OUT
from farm_agents.sandbox.output import OutputLog
from farm_agents.sandbox.running import Sandbox
from farm_agents.sandbox.starvation import Starvation
from farm_agents.worker.frames import frame_parts, read_frame_async

if TYPE_CHECKING:
    from farm_agents.zygotes import Zygote

# Where the child finds its error output again, to point descriptors at it as it would at a log file.
_PRINTS = "/proc/self/fd/2"


@dataclass(slots=True)
class Child:
    """A child: its channel, and `exited`, done with its wait status when its tree is gone.

    Attributes
    ----------
    pid
        On this host; 0 until it was forked.
    sandbox, output
        None for one that is not confined.
    given
        Whether it works for somebody; else it waits for its configuration.
    exceeded
        Set with `exited`: the limit of the sandbox that it passed, such as ``{"limit": "memory"}``.
    starvation
        Tells whether it failed since the host ran out of memory.
    gone
        Done with its wait status when the process itself has ended; what it started may still be there.
    answered
        Whether it has done what it was for.
    unheard
        Whether it was gone before it had read all that was sent: what was asked last was never begun.
    """

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    exited: asyncio.Future[int]
    zygote: Zygote
    sandbox: Sandbox | None = None
    output: OutputLog | None = None
    given: bool = False
    exceeded: Mapping[str, str] = field(default_factory=dict)
    starvation: Starvation = field(init=False)
    gone: asyncio.Future[int] = field(init=False)
    answered: bool = False
    unheard: bool = False
    pid: int = 0
    _out: Path | None = None
    _told: bool = False
    _ending: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        sandbox = self.sandbox
        if sandbox is None:
            self.starvation = Starvation(None)
        else:
            self.starvation = Starvation(sandbox.group, lambda: sandbox.fell)
        self.gone = self.exited.get_loop().create_future()

    @property
    def usable(self) -> bool:
        """Whether it can be expected to answer."""
        return self.zygote.alive and self._ending is None and not self.exited.done()

    async def begin(self, config: Mapping[str, object]) -> None:
        """Tell it what to do: ``out``, ``log`` and ``cache`` are paths of the agent's host.

        A confined child gets its own places instead: the cache as it is shown inside, a private folder for results
        (see `result`), and its output goes through the agent into ``log``.
        """
        self._out = Path(str(config["out"])) if "out" in config else None
        if self.output is not None:
            self.output.attach(Path(str(config["log"])))
        await self.tell(config)

    async def tell(self, config: Mapping[str, object]) -> None:
        """Send what `begin` does, ahead of it; the second time nothing."""
        if self._told:
            return
        self._told = True
        own = dict(config)
        if self.output is not None:
            own |= {"out": str(OUT), "log": _PRINTS, "cache": str(CACHE)}
        await self.send(canonical_json(own))

    async def kill(self) -> int:
        """Kill the child with its whole tree; return its wait status when they are gone."""
        if not self.exited.done():
            self.start_to_kill()
        return await asyncio.shield(self.exited)

    def start_to_kill(self) -> None:
        """Have it killed; `exited` tells when it is gone."""
        if self.sandbox is not None and self._ending is None:
            self.sandbox.kill()
        elif self.sandbox is None and self.zygote.alive:
            self.zygote.kill(self.number)

    async def ended(self, status: int) -> None:
        """Note that the child itself is gone: end its sandbox, and resolve `exited` when that is empty."""
        if not self.gone.done():
            self.gone.set_result(status)
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(status))
        await asyncio.shield(self._ending)

    async def send(self, data: bytes) -> None:
        """Send one frame; a child that is gone is seen when its answer is read."""
        try:
            for part in frame_parts(data):
                self.writer.write(part)
            await self.writer.drain()
        except ConnectionError:
            self.unheard = True

    async def receive(self) -> bytes | None:
        """Return the next frame, or None when the child has closed its channel.

        Raises
        ------
        InfrastructureError
            The frame is over the limit.
        """
        frame = await read_frame_async(self.reader)
        # The kernel tells by a reset that the other end went away with something unread, else by a plain end.
        if frame is None and isinstance(self.reader.exception(), ConnectionError):
            self.unheard = True
        return frame

    def open_result(self, digest: Digest) -> int:
        """Open a file that the child left in its folder of results, and remove it there; return the descriptor.

        Raises
        ------
        InfrastructureError
            There is no such regular file, or the child is gone.
        """
        try:
            return self._open_result(digest)
        except OSError as error:
            raise InfrastructureError(
                f"blob {digest}: the worker's file is unreadable ({error.strerror}); try again"
            ) from error

    def open_file(self, name: str) -> int:
        """Open a regular file of the child's folder of results, which stays there, to read and write.

        Raises as `open_result`.
        """
        try:
            with contextlib.ExitStack() as stack:
                flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                fd = os.open(name, flags, dir_fd=self._results_fd(stack))
        except OSError as error:
            raise InfrastructureError(
                f"worker: its file {name} is unreadable ({error.strerror}); try again"
            ) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InfrastructureError(f"worker: its {name} is not a file any more; try again")
        return fd

    @contextlib.contextmanager
    def result(self, digest: Digest) -> Iterator[Path]:
        """Give a path to a result while the context lasts; raises as `open_result`."""
        fd = self.open_result(digest)
        try:
            yield Path(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    def _open_result(self, digest: Digest) -> int:
        with contextlib.ExitStack() as stack:
            top = self._results_fd(stack)
            flags = os.O_NOFOLLOW | os.O_CLOEXEC
            folder = os.open(digest.sha256[:2], flags | os.O_PATH | os.O_DIRECTORY, dir_fd=top)
            stack.callback(os.close, folder)
            # Non-blocking, so that a pipe put in its place cannot hold the agent.
            fd = os.open(digest.sha256, flags | os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size != digest.size_bytes:
                os.close(fd)
                raise OSError(0, f"not a file of {digest.size_bytes} bytes")
            os.unlink(digest.sha256, dir_fd=folder)
            return fd

    def _results_fd(self, stack: contextlib.ExitStack) -> int:
        if self.sandbox is not None:
            if self._ending is not None:
                raise OSError(0, "its sandbox has ended")
            return self.sandbox.out_fd
        if self._out is None:
            raise OSError(0, "it has no folder for results")
        fd = os.open(self._out, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        return fd

    async def _end(self, status: int) -> None:
        if self.sandbox is not None:
            self.exceeded = await self.sandbox.end(self.starvation.close)
        else:
            self.starvation.close()
        if self.output is not None:
            self.output.close()
        self.writer.close()  # it wrote all that it ever will
        if not self.exited.done():
            self.exited.set_result(status)
