"""Whether the sandbox holds on this host: a child inside tries to break out, the agent looks on.

Owns: the test. Does not own: the attempts (`farm_agents.worker.probe`), or what follows (`confinement`).

Invariant: only a test that ran to its end without one success of the probe counts as passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from farm.core.ids import IdSource
from farm.core.tasks import finish
from farm.errors import InfrastructureError
from farm_agents.sandbox.limits import Limits
from farm_agents.sandbox.running import Rooms
from farm_agents.zygotes import Zygote

PROBE_LIMITS = Limits(memory_bytes=48 << 20, processes=12, scratch_bytes=1 << 20, open_files=64)
"""Small, so that reaching them costs little."""
TEST_LIMIT_S = 30.0


async def prove(rooms: Rooms, work_dir: Path, new_id: IdSource) -> None:
    """Return if nothing got out.

    Raises
    ------
    InfrastructureError
        Something did, or the test could not be carried out; the message says what.
    """
    small = replace(rooms, limits=PROBE_LIMITS)
    log = work_dir / "logs" / "sandbox.log"
    with socket.create_server(("127.0.0.1", 0)) as listening, _secret(work_dir) as secret:
        zygote = await Zygote.start("probe", log, new_id, rooms=small)
        try:
            async with asyncio.timeout(TEST_LIMIT_S):
                await _probe(zygote, str(secret), listening.getsockname()[1])
        except TimeoutError as error:
            raise InfrastructureError(
                f"sandbox: its test did not end in {TEST_LIMIT_S:g} s; see {log}"
            ) from error
        finally:
            await finish(zygote.close())


async def _probe(zygote: Zygote, secret: str, port: int) -> None:
    child = await zygote.fork(
        {
            "secret": secret,
            "port": port,
            "log": os.devnull,
            "cache": "",
            "processes": PROBE_LIMITS.processes,
            "memory_bytes": PROBE_LIMITS.memory_bytes,
        }
    )
    answer, orphan = await child.receive(), await child.receive()
    sandbox = child.sandbox
    if answer is None or orphan is None or sandbox is None:
        raise InfrastructureError("sandbox: the probe ended early; see the log logs/sandbox.log")
    before = sandbox.group.pids()
    await child.kill()
    left = sorted(pid for pid in before if Path(f"/proc/{pid}").exists())
    if left:
        raise InfrastructureError(f"sandbox: processes outlived it ({left}); do not use this host")
    got = json.loads(answer)
    if got:
        told = "; ".join(f"{name}: {story}" for name, story in got.items())
        raise InfrastructureError(f"sandbox: a probe got out of it ({told}); do not use this host")


@contextlib.contextmanager
def _secret(work_dir: Path) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(dir=work_dir, prefix="probe-") as file:
        file.write(b"secret")
        file.flush()
        yield Path(file.name)
