"""One device of this agent: its lock, its driver, and a warm zygote.

Owns: opening the device for this agent, checking it, and having a zygote ready before a lease needs it.
Does not own: leases (`farm_agents.state`), sessions (`farm_agents.session`).

Invariant: the device is opened by one agent of the host at a time; the lock lasts as long as the zygote's tree.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from farm.core.ids import IdSource
from farm.errors import DeviceBusy, FarmError
from farm_agents.drivers import Checked, Description, Driver, driver_for
from farm_agents.drivers.base import bad
from farm_agents.drivers.lock import DeviceLock, acquire
from farm_agents.sandbox.confinement import Confinement
from farm_agents.spec import AgentSpec, DeviceSpec
from farm_agents.zygotes import Zygote

SPARES = 2
"""Children that wait in a sandbox. Making one is nearly all waiting for the kernel, which two do at the same time."""


class LocalDevice:
    """A device that this agent owns or tries to own."""

    def __init__(
        self, agent: AgentSpec, spec: DeviceSpec, new_id: IdSource, confinement: Confinement
    ) -> None:
        self.device_id = spec.device_id
        self.driver: Driver = driver_for(spec.driver, spec.argument)
        self.description: Description = self.driver.describe()
        self.labels = self._own_labels = dict(self.description.labels) | {
            "device_id": spec.device_id,
            "driver": spec.driver,
            "host": socket.gethostname(),
        }
        # Emulated devices and host CPUs are as many as farms want; within one farm an id is one device.
        self._lock_name = f"{agent.tracker}/{spec.device_id}"
        self._log = agent.work_dir / "logs" / f"{spec.device_id}.log"
        self._new_id = new_id
        self._confinement = confinement
        self._lock: DeviceLock | None = None
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()

    async def check(self) -> Checked:
        """Take the lock if it is free, probe the device, and warm a zygote up."""
        try:
            if self._lock is None:
                self._lock = acquire(self._lock_name)
            found = await asyncio.to_thread(self.driver.check)
            if found.cause == "":
                await self.zygote()
        except DeviceBusy as error:
            return bad(f"locked by pid {error.details['pid']}")
        except FarmError as error:
            return bad(error.message)
        except OSError as error:  # such as a full disk
            return bad(f"cannot be checked ({error}); look at this host's disk")
        return found

    async def zygote(self) -> Zygote:
        """Return a warm zygote, starting one if there is none.

        Raises
        ------
        InfrastructureError
            It does not start.
        """
        rooms = await self._confinement.settle()
        async with self._starting:
            if self._zygote is None or not self._zygote.serves(rooms):
                if self._zygote is not None:
                    await self._zygote.close()
                held = (self._lock.fd,) if self._lock else ()
                emulated = any(it.split()[0] == "ea" for it in self.description.targets)
                warm = "ea" if emulated else self.driver.loader().kind
                self._zygote = await Zygote.start(
                    *("session", self._log, self._new_id, warm),
                    held_fds=held,
                    rooms=rooms,
                    ahead=self.config(Path(), Path()),
                    spares=SPARES,
                )
            if self._zygote.rooms is rooms:
                self.labels = self._own_labels | self._confinement.labels
            return self._zygote

    async def kill_all(self) -> None:
        """Kill every worker of the device; return when everything that they started is proved gone."""
        if self._zygote is not None:
            await self._zygote.kill_all()

    def config(self, folder: Path, cache: Path) -> dict[str, object]:
        """Return the configuration of a session's child that works in `folder`."""
        return {
            "loader": self.driver.loader().to_config(),
            "cache": str(cache),
            "out": str(folder / "out"),
            "log": str(folder / "output.log"),
            "address_space_bytes": self.description.address_space_bytes,
        }

    async def close(self) -> None:
        """End the zygote with everything below it, then give the lock back."""
        async with self._starting:
            if self._zygote is not None:
                await self._zygote.close()
                self._zygote = None
            if self._lock is not None:
                self._lock.release()
                self._lock = None
