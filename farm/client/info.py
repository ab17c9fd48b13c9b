"""What a client learns: devices, agents, times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from farm.api.v1 import device_pb2


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as the tracker sees it; the four states are lower-case words, such as ``enabled`` and ``idle``."""

    device_id: str
    agent_id: str
    targets: tuple[str, ...]
    labels: Mapping[str, str]
    timing_class: str
    admin: str
    observed: str
    health: str
    health_cause: str
    use: str
    epoch: int

    @staticmethod
    def from_proto(device: device_pb2.Device) -> DeviceInfo:
        """Return what a message says."""
        about = device.description
        return DeviceInfo(
            device_id=about.device_id,
            agent_id=device.agent_id,
            targets=tuple(about.targets),
            labels=dict(sorted(about.labels.items())),
            timing_class=_word(device_pb2.TimingClass.Name(about.timing_class)),
            admin=_word(device_pb2.Admin.Name(device.admin)),
            observed=_word(device_pb2.Observed.Name(device.observed)),
            health=_word(device_pb2.Health.Name(device.health)),
            health_cause=device.health_cause,
            use=_word(device_pb2.Use.Name(device.use)),
            epoch=device.epoch,
        )


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent as the tracker sees it."""

    agent_id: str
    observed: str
    builds: tuple[str, ...]
    device_ids: tuple[str, ...]
    hosted_by: str
    host: str

    @staticmethod
    def from_proto(agent: device_pb2.Agent) -> AgentInfo:
        """Return what a message says."""
        return AgentInfo(
            agent_id=agent.agent_id,
            observed=_word(device_pb2.Observed.Name(agent.observed)),
            builds=tuple(agent.builds),
            device_ids=tuple(agent.device_ids),
            hosted_by=agent.hosted_by,
            host=agent.host,
        )


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall times of repeated calls on a device.

    Attributes
    ----------
    samples_ns
        Each call, in the order taken; never empty.
    timing_class
        ``native``, ``emulated`` or ``simulated``: only times of one class may be compared.
    """

    samples_ns: tuple[int, ...]
    timing_class: str

    @property
    def median_s(self) -> float:
        """Return the median in seconds."""
        return statistics.median(self.samples_ns) / 1e9

    @property
    def min_s(self) -> float:
        """Return the shortest in seconds."""
        return min(self.samples_ns) / 1e9


def _word(name: str) -> str:
    """Return ``enabled`` for ``ADMIN_ENABLED``."""
    prefixes = ("TIMING_CLASS_", "ADMIN_", "OBSERVED_", "HEALTH_", "USE_")
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name.lower()
