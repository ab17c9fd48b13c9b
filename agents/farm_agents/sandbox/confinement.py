"""Whether an agent's workers are confined: wished by its specification, decided by a test.

Owns: the decision, made once, and its label. Does not own: the test (`selftest`), or the sandbox itself.

Invariant: children run without a sandbox only if that was asked for, or if none works here and none is required, and
then the labels say so, and why. One test that failed decides nothing: it is made again, since a busy host fails it too,
and `keep_testing` goes on.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from pathlib import Path

from farm.core.clock import Clock
from farm.core.ids import IdSource
from farm.errors import FarmError, InfrastructureError
from farm_agents.sandbox.bubblewrap import find_bwrap, make_view
from farm_agents.sandbox.cgroups import Hierarchies
from farm_agents.sandbox.limits import Limits
from farm_agents.sandbox.mode import Mode
from farm_agents.sandbox.running import Rooms
from farm_agents.sandbox.seccomp import supports
from farm_agents.sandbox.selftest import prove

RETRY_S = 30.0
TRIES = 3
"""How often a sandbox is tested that does not pass."""
PAUSE_S = 2.0
"""Before the second test; doubled before each further one."""
LATER_S = 300.0
"""After how long a host is tested again that goes without a sandbox since its tests failed."""
_LOG = logging.getLogger("farm_agents")


class Confinement:
    """The decision for one agent; `settle` makes it."""

    def __init__(
        self,
        mode: Mode,
        work_dir: Path,
        new_id: IdSource,
        clock: Clock,
        limits: Limits | None = None,
    ) -> None:
        self._mode = mode
        self._work_dir = work_dir
        self._new_id = new_id
        self._clock = clock
        self._limits = limits or Limits.default()
        self._settling = asyncio.Lock()
        self._settled = mode is Mode.NONE
        self._rooms: Rooms | None = None
        self._error: FarmError | None = None
        self._again_at = 0.0
        self._why_none = "asked" if mode is Mode.NONE else "untested"

    @property
    def labels(self) -> dict[str, str]:
        """Labels for the agent's devices: ``sandbox`` (``bwrap`` or ``none``), what it does not limit, why it is none.

        The last is ``sandbox-none``: ``asked`` for, ``absent`` from this host, ``failed`` its tests, ``untested``.
        """
        if self._rooms is None:
            return {"sandbox": "none", "sandbox-none": self._why_none}
        missing = ",".join(self._rooms.hierarchies.missing)
        return {"sandbox": "bwrap"} | ({"sandbox-lacks": missing} if missing else {})

    async def settle(self) -> Rooms | None:
        """Return how to confine; None: not at all.

        Raises
        ------
        InfrastructureError
            A sandbox is required and does not work here; it is tried again after a while.
        """
        async with self._settling:
            if not self._settled:
                await self._decide()
        return self._rooms

    async def keep_testing(self) -> None:
        """Test again now and then, as long as there is no sandbox only because it failed its tests."""
        while not self._settled or (self._rooms is None and self._why_none == "failed"):
            await asyncio.sleep(LATER_S)
            if self._settled and self._rooms is None:
                await self._test_again()

    async def _test_again(self) -> None:
        try:
            rooms = await asyncio.to_thread(self._find)
        except (FarmError, OSError):
            return
        try:
            await prove(rooms, self._work_dir, self._new_id)
        except BaseException as error:
            rooms.hierarchies.close()
            if not isinstance(error, (FarmError, OSError)):
                raise
            _LOG.warning("sandbox: still none (%s); again in %g s", error, LATER_S)
        else:
            self._rooms = rooms
            _LOG.warning("sandbox: it works now; what is begun from now on is confined")

    def close(self) -> None:
        """Remove what was made for all sandboxes together; they have ended."""
        if self._rooms is not None:
            self._rooms.hierarchies.close()

    async def _decide(self) -> None:
        if self._error is not None and self._clock.now() < self._again_at:
            raise self._error
        try:
            rooms = await asyncio.to_thread(self._find)
        except (FarmError, OSError) as error:
            self._refuse(error, "absent")
            return
        try:
            await self._prove(rooms)
        except (FarmError, OSError) as error:
            rooms.hierarchies.close()
            self._refuse(error, "failed")
            return
        except BaseException:
            rooms.hierarchies.close()
            raise
        self._rooms, self._settled = rooms, True
        for name in rooms.hierarchies.missing:
            _LOG.warning(
                "sandbox: no writable control group limits %s; each process is limited alone", name
            )

    async def _prove(self, rooms: Rooms) -> None:
        """Test a sandbox until it passes, a few times; raises what the last test said."""
        for number in range(1, TRIES + 1):
            try:
                await prove(rooms, self._work_dir, self._new_id)
            except (FarmError, OSError) as error:
                if number == TRIES:
                    raise
                wait_s = PAUSE_S * 2 ** (number - 1)
                _LOG.warning(
                    "sandbox: test %d of %d failed (%s); again in %g s",
                    number,
                    TRIES,
                    error,
                    wait_s,
                )
                await asyncio.sleep(wait_s)
            else:
                return

    def _find(self) -> Rooms:
        if not supports(platform.machine()):
            raise InfrastructureError(
                f"sandbox: no system call filter for {platform.machine()}; use another host"
            )
        view = make_view(self._work_dir / "cache", self._limits.scratch_bytes)
        return Rooms(find_bwrap(), view, self._limits, Hierarchies.find())

    def _refuse(self, error: FarmError | OSError, why: str) -> None:
        self._why_none = why
        if self._mode is Mode.REQUIRED:
            self._again_at = self._clock.now() + RETRY_S
            self._error = InfrastructureError(str(error))
            raise self._error from error
        self._settled = True
        _LOG.error(
            "sandbox: NONE on this host, %s (%s); kernels and compilers run UNCONFINED, with this user's rights, so "
            "offer these devices to trusted users only; --sandbox required would refuse",
            why,
            error,
        )
