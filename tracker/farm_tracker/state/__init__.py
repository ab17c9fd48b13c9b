"""The pure core of the tracker: (state, event, now) → (what changes, commands).

Owns: devices, leases, build jobs, units, attempts and agents, and every rule about them.
Does not own: input or output, clocks, ids, storage.

Invariant: every state between two others has a deadline and a named next state; expiry wins over any event of the
same moment; an event that raises changes nothing.
"""

from farm_tracker.state.deadlines import deadlines
from farm_tracker.state.invariants import violations
from farm_tracker.state.state import State
from farm_tracker.state.step import step

__all__ = ["State", "deadlines", "step", "violations"]
