"""The pure core of the agent: (state, event, now) → (state, commands).

Owns: what each device and each build attempt is doing, epochs, deadlines.
Does not own: processes, sockets, files, clocks (the shell in `farm_agents.agent` does what the commands say).

Invariant: the same state, event and time give the same answer; nothing here waits, reads or writes.
"""

from farm_agents.state.core import step
from farm_agents.state.model import State, initial_state, next_deadline

__all__ = ["State", "initial_state", "next_deadline", "step"]
