"""What one agent is to be: the same value for the command line, the fleet and embedding.

Owns: `AgentSpec` and `DeviceSpec`, their checks and their JSON form. Does not own: what drivers do with them.

Invariant: a value that exists has well-formed, unique device ids, families that there can be, and something to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.core.digest import canonical_json
from farm.core.ids import NAME, AgentId, DeviceId
from farm.errors import InvalidInput
from farm.target import Target
from farm_agents.sandbox.mode import Mode

_DEVICE = re.compile(
    r"(?P<driver>[a-z][a-z0-9-]{0,30})(?::(?P<argument>[A-Za-z0-9._/-]{1,128}))?(?:@(?P<id>.+))?"
)
MAX_SLOTS = 256
CANARY_EVERY_S = 300.0
MAX_CANARY_EVERY_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device: which driver, its argument (such as an architecture), and the device's id."""

    driver: str
    argument: str
    device_id: DeviceId

    def __str__(self) -> str:
        """Return the form of the command line."""
        argument = f":{self.argument}" if self.argument else ""
        return f"{self.driver}{argument}@{self.device_id}"


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent.

    Attributes
    ----------
    tracker
        ``host:port``.
    builds
        Families of targets that it builds, such as ``llvm/aarch64``.
    slots
        How many items it builds at once, 0 to 256.
    work_dir
        Folder of its own: cache, logs, scratch. Created if absent.
    hosted_by
        Who runs it: ``process`` or ``ray``.
    sandbox
        Whether its workers are confined.
    canary_every_s
        How often each device's canary runs while the device is idle; it also runs on join and after a crash. 0: never.
    """

    tracker: str
    agent_id: AgentId
    builds: tuple[str, ...]
    slots: int
    devices: tuple[DeviceSpec, ...]
    work_dir: Path
    hosted_by: str = "process"
    sandbox: Mode = Mode.AUTO
    canary_every_s: float = CANARY_EVERY_S

    def __post_init__(self) -> None:
        check_id("agent", self.agent_id)
        for family in self.builds:
            Target.of_family(family)
        if not 0 <= self.slots <= MAX_SLOTS:
            raise InvalidInput(
                f"agent {self.agent_id}: impossible slots ({self.slots}); use 0 to {MAX_SLOTS}"
            )
        if not self.devices and not self.builds:
            raise InvalidInput(
                f"agent {self.agent_id}: neither builds nor devices; name families that it builds "
                "(such as llvm/aarch64) or devices that it owns (such as cpu), or both"
            )
        if not 0 <= self.canary_every_s <= MAX_CANARY_EVERY_S:
            raise InvalidInput(
                f"agent {self.agent_id}: impossible time between canaries ({self.canary_every_s:g} s); use 0 "
                f"(never) to {MAX_CANARY_EVERY_S:g}"
            )
        names = [device.device_id for device in self.devices]
        for name in names:
            check_id("device", name)
            if names.count(name) > 1:
                raise InvalidInput(
                    f"agent {self.agent_id}: two devices of one id ({name}); name one of them with @ID"
                )

    def to_json(self) -> str:
        """Return the canonical JSON text of this specification."""
        value = {
            "tracker": self.tracker,
            "agent_id": self.agent_id,
            "builds": list(self.builds),
            "slots": self.slots,
            "devices": [str(device) for device in self.devices],
            "work_dir": str(self.work_dir),
            "hosted_by": self.hosted_by,
            "sandbox": self.sandbox.value,
            "canary_every_s": self.canary_every_s,
        }
        return canonical_json(value).decode()

    @staticmethod
    def from_json(text: str) -> AgentSpec:
        """Return the specification of a text made by `to_json`."""
        value = json.loads(text)
        agent_id = AgentId(value["agent_id"])
        return AgentSpec(
            tracker=value["tracker"],
            agent_id=agent_id,
            builds=tuple(value["builds"]),
            slots=value["slots"],
            devices=parse_devices(value["devices"], agent_id),
            work_dir=Path(value["work_dir"]),
            hosted_by=value["hosted_by"],
            sandbox=Mode(value["sandbox"]),
            canary_every_s=value["canary_every_s"],
        )


def parse_devices(texts: Sequence[str], agent_id: AgentId) -> tuple[DeviceSpec, ...]:
    """Parse devices in the form ``driver[:argument][@device_id]``.

    The id of a device that has none is ``AGENT-DRIVER``, and ``AGENT-DRIVER-2`` for the second of a driver.

    Raises
    ------
    InvalidInput
        A text is malformed, or the id is.
    """
    found: list[DeviceSpec] = []
    for text in texts:
        match = _DEVICE.fullmatch(text)
        if not match:
            raise InvalidInput(
                f"device: malformed ({text[:80]!r}); use driver[:argument][@id] such as qemu:aarch64"
            )
        driver = match["driver"]
        earlier = sum(device.driver == driver for device in found)
        default = f"{agent_id}-{driver}" + (f"-{earlier + 1}" if earlier else "")
        device_id = check_id("device", match["id"] or default)
        found.append(DeviceSpec(driver, match["argument"] or "", DeviceId(device_id)))
    return tuple(found)


def check_id(what: str, name: str) -> str:
    """Return `name`, or raise InvalidInput if it is no agent or device id."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{what} id: malformed ({name[:80]!r}); use lower-case letters, digits, dots, dashes and "
            "underscores, at most 63, a letter or digit first"
        )
    return name
