"""Fleet files: how many agents of which kind there are to be.

Owns: parsing and checking the TOML form, and the default fleet of an embedded farm.
Does not own: starting anything (`farm_agents.fleet.cluster`).

Invariant: a `Fleet` that exists names each agent and each device once.

A fleet file::

    [[agent]]
    name = "shelf"              # required; agents are shelf-1, shelf-2, ... if count is above 1
    count = 2                   # default 1
    builds = ["llvm/aarch64"]   # default none
    slots = 1                   # items built at once, default 1
    devices = ["qemu:aarch64"]  # default none; driver[:argument][@id]
    sandbox = "required"        # or "none"; default: where it works
    canary_every_s = 60         # seconds between canary kernels on an idle device; 0: never; default: 300
    resources = { board = 1 }   # custom Ray resources that place it, default none
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.core.ids import AgentId
from farm.errors import InvalidFleet, InvalidInput
from farm.target.host import canonical_arch
from farm_agents.sandbox.mode import Mode
from farm_agents.spec import (
    CANARY_EVERY_S,
    MAX_CANARY_EVERY_S,
    AgentSpec,
    DeviceSpec,
    check_id,
    parse_devices,
)

MAX_AGENTS = 1_000
MAX_FILE_BYTES = 1 << 20
KEYS = ("name", "count", "builds", "slots", "devices", "sandbox", "canary_every_s", "resources")


@dataclass(frozen=True, slots=True)
class Member:
    """One agent of a fleet."""

    agent_id: AgentId
    builds: tuple[str, ...]
    slots: int
    devices: tuple[DeviceSpec, ...]
    resources: tuple[tuple[str, float], ...]
    sandbox: Mode = Mode.AUTO
    canary_every_s: float = CANARY_EVERY_S

    def spec(self, tracker: str, work_dir: Path) -> AgentSpec:
        """Return the agent's specification for one tracker; its folder is below `work_dir`."""
        return AgentSpec(
            tracker=tracker,
            agent_id=self.agent_id,
            builds=self.builds,
            slots=self.slots,
            devices=self.devices,
            work_dir=work_dir / self.agent_id,
            hosted_by="ray",
            sandbox=self.sandbox,
            canary_every_s=self.canary_every_s,
        )


@dataclass(frozen=True, slots=True)
class Fleet:
    """The agents that are to run."""

    members: tuple[Member, ...]

    @staticmethod
    def load(path: Path) -> Fleet:
        """Read a fleet file.

        Raises
        ------
        InvalidFleet
            It cannot be read, is no TOML, or breaks a rule; the message names entry, key and value.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InvalidFleet(
                f"fleet {path}: cannot be read ({error.strerror}); name an existing file"
            ) from error
        if len(data) > MAX_FILE_BYTES:
            raise InvalidFleet(
                f"fleet {path}: too large ({len(data)} bytes); keep it below {MAX_FILE_BYTES}"
            )
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise InvalidFleet(
                f"fleet {path}: not UTF-8 ({error.reason}); save it as UTF-8"
            ) from error
        return Fleet.parse(text, str(path))

    @staticmethod
    def parse(text: str, name: str = "file") -> Fleet:
        """Parse the text of a fleet file; raises as `load`."""
        try:
            value = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidFleet(f"fleet {name}: no TOML ({error}); correct that place") from error
        unknown = sorted(set(value) - {"agent"})
        entries = value.get("agent")
        if unknown:
            raise InvalidFleet(f"fleet {name}: unknown key ({unknown[0]!r}); known: [[agent]]")
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise InvalidFleet(
                f"fleet {name}: no [[agent]] entry; write one for each kind of agent"
            )
        members: list[Member] = []
        for number, entry in enumerate(entries, 1):
            members.extend(_members(f"fleet {name}: agent {number}", entry))
        _check_unique(name, members)
        return Fleet(tuple(members))


def default_fleet(host_arch: str) -> Fleet:
    """Return the fleet of an embedded farm: this host's CPU, an emulated aarch64, the accelerator `ea`.

    On an aarch64 host the first serves aarch64 itself, so that there is no emulated one.
    """
    arch = canonical_arch(host_arch)
    kinds = [("cpu", f"llvm/{arch}", "cpu")]
    if arch != "aarch64":
        kinds.append(("aarch64", "llvm/aarch64", "qemu:aarch64"))
    kinds.append(("ea", "ea", "ea:ea16"))
    return Fleet(
        tuple(
            Member(
                agent_id=AgentId(f"{name}-1"),
                builds=(family,),
                slots=1,
                devices=parse_devices([device], AgentId(f"{name}-1")),
                resources=(),
            )
            for name, family, device in kinds
        )
    )


def _members(where: str, entry: Mapping[str, object]) -> list[Member]:
    for key in entry:
        if key not in KEYS:
            raise InvalidFleet(f"{where}: unknown key ({key!r}); known keys are {', '.join(KEYS)}")
    name = entry.get("name")
    if not isinstance(name, str):
        raise _wrong(where, "name", name, "a string")
    count = _integer(where, entry, "count", 1, 1, MAX_AGENTS)
    slots = _integer(where, entry, "slots", 1, 0, 256)
    builds = _texts(where, entry, "builds")
    devices = _texts(where, entry, "devices")
    if count > 1 and any("@" in device for device in devices):
        raise InvalidFleet(
            f"{where}: devices: a device id of its own with count = {count} ({devices}); drop the @id"
        )
    resources = _resources(where, entry)
    sandbox = _sandbox(where, entry)
    every_s = _integer(
        where, entry, "canary_every_s", int(CANARY_EVERY_S), 0, int(MAX_CANARY_EVERY_S)
    )
    members = []
    for number in range(1, count + 1):
        agent_id = AgentId(f"{name}-{number}" if count > 1 else name)
        try:
            check_id("agent", agent_id)
            parsed = parse_devices(devices, agent_id)
            member = Member(agent_id, builds, slots, parsed, resources, sandbox, every_s)
            member.spec("127.0.0.1:1", Path())  # checks what is left
        except InvalidInput as error:
            raise InvalidFleet(f"{where}: {error.message}") from error
        members.append(member)
    return members


def _check_unique(name: str, members: list[Member]) -> None:
    seen: set[str] = set()
    if len(members) > MAX_AGENTS:
        raise InvalidFleet(f"fleet {name}: too many agents ({len(members)}); at most {MAX_AGENTS}")
    for member in members:
        for thing in (
            f"agent {member.agent_id}",
            *(f"device {d.device_id}" for d in member.devices),
        ):
            if thing in seen:
                raise InvalidFleet(f"fleet {name}: {thing} appears twice; give one another name")
            seen.add(thing)


def _integer(
    where: str, entry: Mapping[str, object], key: str, default: int, least: int, most: int
) -> int:
    value = entry.get(key, default)
    if type(value) is not int or not least <= value <= most:
        raise _wrong(where, key, value, f"an integer from {least} to {most}")
    return value


def _texts(where: str, entry: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(where, key, value, "a list of strings")
    return tuple(value)


def _resources(where: str, entry: Mapping[str, object]) -> tuple[tuple[str, float], ...]:
    value = entry.get("resources", {})
    if not isinstance(value, dict):
        raise _wrong(where, "resources", value, "a table of positive numbers")
    for name, amount in value.items():
        if (
            type(amount) not in (int, float)
            or not 0 < amount <= 1_000_000
            or name in ("CPU", "GPU")
        ):
            raise _wrong(
                where, f"resources.{name}", amount, "a positive number of a resource of yours"
            )
    return tuple(sorted((name, float(amount)) for name, amount in value.items()))


def _sandbox(where: str, entry: Mapping[str, object]) -> Mode:
    value = entry.get("sandbox", Mode.AUTO.value)
    try:
        return Mode(value)
    except ValueError:
        raise _wrong(where, "sandbox", value, '"required", "none" or "auto"') from None


def _wrong(where: str, key: str, value: object, wanted: str) -> InvalidFleet:
    return InvalidFleet(f"{where}: {key}: wrong value ({str(value)[:80]!r}); write {wanted}")
