"""What every part of a client shares: the connection, the store, and how long to believe in the tracker's return.

Owns: those. Does not own: any call.

Invariant: every operation has a `Patience` of its own.
"""

from __future__ import annotations

import grpc

from farm.client.patience import AWAY_S, Patience
from farm.client.transfer import Store
from farm.core.clock import SystemClock


class Calls:
    """The base of a client's parts.

    Attributes
    ----------
    away_s
        How long the tracker may be away before calls about jobs, devices and events give up, in seconds.
    """

    address: str
    away_s: float = AWAY_S
    _channel: grpc.Channel
    _store: Store

    def _patience(self, timeout_s: float | None = None, what: str = "call") -> Patience:
        clock = SystemClock()
        deadline = None if timeout_s is None else clock.now() + timeout_s
        return Patience(self.address, deadline, what, self.away_s, clock)
