"""The agents of an embedded farm.

Owns: which agents there are if nobody says otherwise. Does not own: what an agent does.

Invariant: between them the default agents build for every target that the default devices run, each target kind on an
agent of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from farm.target import Target


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """One agent to start.

    Attributes
    ----------
    builds
        Families of targets, such as ``llvm/aarch64``.
    devices
        Each ``DRIVER[:ARGUMENT][@ID]``.
    slots
        How many items it builds at once.
    """

    agent_id: str
    builds: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    slots: int = 1

    def arguments(self) -> Iterator[str]:
        """Yield this plan as arguments of ``python -m farm_agents``."""
        yield from ("--agent-id", self.agent_id, "--slots", str(self.slots))
        if self.builds:
            yield from ("--builds", ",".join(self.builds))
        for device in self.devices:
            yield from ("--device", device)


def _default_agents() -> tuple[AgentPlan, ...]:
    own = Target.parse("llvm").family
    kinds = [("cpu-1", own, "cpu")]
    if own != "llvm/aarch64":
        kinds.append(("aarch64-1", "llvm/aarch64", "qemu:aarch64"))
    kinds.append(("ea-1", "ea", "ea:ea16"))
    return tuple(AgentPlan(name, (family,), (device,)) for name, family, device in kinds)


DEFAULT_AGENTS = _default_agents()
"""The same agents as the default fleet has, so that tests without Ray see the same farm."""
