"""A whole farm for tests, demonstrations and one person's machine.

Owns: starting a tracker and agents as child processes, waiting until they serve, and ending them.
Does not own: what these do; it knows only their command lines.

Invariant: when an `EmbeddedFarm` has ended, however it ended, no process of it is left.

Examples
--------
::

    import farm
    from farm.testing import EmbeddedFarm

    with EmbeddedFarm(agents="processes") as embedded, farm.connect(embedded.address) as client:
        print(client.devices())
"""

from farm.testing.agents import DEFAULT_AGENTS, AgentPlan
from farm.testing.embedded import EmbeddedFarm
from farm.testing.keeping import Keeping

__all__ = ["DEFAULT_AGENTS", "AgentPlan", "EmbeddedFarm", "Keeping"]
