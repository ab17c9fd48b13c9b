"""How long to wait before the next try.

Owns: exponential backoff with full jitter. Does not own: what is tried or for how long.

Invariant: a wait is never above the ceiling; `reset` starts over.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Waits that double from `first_s` to `ceiling_s`, each cut by a random factor of 0.5 to 1.

    The randomness keeps many agents from dialling a restarted tracker in the same moment.
    """

    first_s: float = 0.1
    ceiling_s: float = 5.0
    source: random.Random = field(default_factory=random.Random)
    _tries: int = 0

    def next_s(self) -> float:
        """Return the next wait in seconds."""
        full = min(self.ceiling_s, self.first_s * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return full * self.source.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start over: something worked."""
        self._tries = 0
