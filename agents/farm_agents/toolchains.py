"""Which compilers this agent builds with, asked of a process of its own.

Owns: starting that process and checking what it says. Does not own: compilers, which the agent itself never imports.

Invariant: the process is gone when `find_toolchains` returns or raises.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from farm.core.tasks import finish
from farm.errors import InfrastructureError, InvalidInput

LIMIT_S = 60.0
MAX_NAME = 200


async def find_toolchains(families: Sequence[str]) -> dict[str, str]:
    """Return name and version of the compiler for each family that can be built here.

    Raises
    ------
    InvalidInput
        No compiler knows one of them.
    InfrastructureError
        The process failed, or did not answer in time.
    """
    if not families:
        return {}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "farm_agents.worker.toolchains", *families),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise InfrastructureError(
            f"toolchains: not told within {LIMIT_S:g} s; look at this host's load"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await finish(process.wait())
    return _checked(output, families)


def _checked(output: bytes, families: Sequence[str]) -> dict[str, str]:
    try:
        value = json.loads(output)
        found = {family: value[family] for family in families if family in value}
    except (ValueError, TypeError) as error:
        raise InfrastructureError(
            f"toolchains: not told ({output[:80]!r}); reinstall the agent"
        ) from error
    unknown = [family for family, name in found.items() if name is None]
    if unknown:
        raise InvalidInput(
            f"builds: unknown family ({', '.join(unknown)}): no compiler here knows its architecture; "
            "name it as LLVM does"
        )
    return {family: str(name)[:MAX_NAME] for family, name in found.items()}
