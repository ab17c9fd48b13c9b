"""Lease tokens: the secret of one lease and epoch.

Owns: making and checking it. Does not own: leases. Invariant: nothing is stored, so it outlives a restart as the
lease does; without the farm's key it cannot be made from a lease's id and epoch.
"""

from __future__ import annotations

import hashlib
import hmac

from farm.core.tokens import equal, text_of
from farm.errors import NotAllowed

MAX_CHARS = 64


class LeaseTokens:
    """The lease tokens of one farm."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, b"lease tokens", hashlib.sha256)

    def token(self, lease_id: str, epoch: int) -> str:
        """Return the secret of a lease: HMAC-SHA-256 of its id and epoch, as 43 characters."""
        return text_of(hmac.digest(self._key, f"{epoch}/{lease_id}".encode(), hashlib.sha256))

    def check(self, lease_id: str, epoch: int, shown: str) -> None:
        """Check the secret that somebody shows.

        Raises
        ------
        NotAllowed
            It is absent, or of another lease or epoch.
        """
        if len(shown) > MAX_CHARS or not equal(
            self.token(lease_id, epoch).encode(), shown.encode()
        ):
            raise NotAllowed(
                f"lease {lease_id[:80]} (epoch {epoch}): its lease token "
                f"{'is wrong' if shown else 'is missing'}; show the one that Acquire answered with"
            )
