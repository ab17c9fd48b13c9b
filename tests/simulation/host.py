"""A host with devices: the ground truth of which processes really run on what.

Owns: processes on each device, the lock of each device, how long a kill takes.
Does not own: who believes what about them.

`Rig.lock` stands for `farm_agents.drivers.lock` (a file lock that lasts as long as any process of the tree that
inherited its descriptor), `Process` for a zygote's child with everything that it started, `end_after` for
`processes.kill` until `processes.marked` is empty.

Invariant: a process leaves `processes` only when it is really gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.core.ids import AttemptId
    from simulation.agent import Agent
    from simulation.checks import Checks
    from simulation.runs import Record
    from simulation.world import World

NEVER = float("inf")


@dataclass(eq=False, slots=True)
class Process:
    """What runs on a device for one epoch. `kill_s`: how long it outlives the first signal."""

    epoch: int
    owner: str
    kill_s: float
    killed_at: float | None = None


@dataclass(eq=False)
class Rig:
    """One physical device."""

    device_id: str
    world: World
    checks: Checks
    processes: list[Process] = field(default_factory=list)
    holder: Agent | None = None
    is_sick: bool = False
    last_epoch: int = 0
    cleaned_epoch: int = 0

    def lock(self, agent: Agent) -> bool:
        """Take the lock for an agent's process unless another, or what one started, still holds it."""
        if self.holder is not agent:
            if self.holder is not None or self.processes:
                return False
            self.holder = agent
        return True

    def unlock(self, agent: Agent) -> None:
        """Close the agent's copy of the lock; what it started may hold it on."""
        if self.holder is agent:
            self.holder = None

    def start(self, agent: Agent, epoch: int, kill_s: float) -> Process:
        """Start a process of a lease: from here on something really runs."""
        process = Process(epoch, agent.instance_id, kill_s)
        self.checks.process_starts(self, process, agent)
        self.last_epoch = epoch
        self.processes.append(process)
        self.world.tell(self.device_id, "process of epoch %d starts (%s)", epoch, agent.instance_id)
        return process

    def kill(self, process: Process) -> None:
        """Send SIGKILL to a process and its tree; it is gone when it is gone."""
        if process.killed_at is None:
            process.killed_at = self.world.now
            if process.kill_s != NEVER:
                self.world.later(process.kill_s, self._end, process)

    def reboot(self) -> None:
        """End what nothing else could."""
        for process in list(self.processes):
            if process.kill_s == NEVER:
                process.kill_s = 0.0
                if process.killed_at is not None:
                    self._end(process)

    def of(self, instance_id: str) -> list[Process]:
        """Return the processes that one agent's process started."""
        return [it for it in self.processes if it.owner == instance_id]

    def _end(self, process: Process) -> None:
        if process in self.processes:
            self.processes.remove(process)
            self.world.tell(self.device_id, "process of epoch %d is gone", process.epoch)


@dataclass(eq=False)
class Host:
    """A machine: its devices, its disk, and what survives its agents' processes."""

    name: str
    rigs: dict[str, Rig]
    disk_full: bool = False
    outboxes: dict[str, dict[AttemptId, Record]] = field(default_factory=dict)
