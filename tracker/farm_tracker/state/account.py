"""Accounts: who pays for devices, in device-seconds that fade.

Owns: an account's value and its share. Does not own: who may use an account, or when it is charged (`queue`).

Invariant: `held` and `queued` count what the leases and jobs of the account say (`invariants` computes both).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FORGET_AFTER_HALF_LIVES = 20


@dataclass(frozen=True, slots=True)
class Account:
    """What one account used, holds and waits for.

    `usage_s` are device-seconds as of `usage_at`, halved every half-life since; `held_since_s` is the sum of the
    points in time at which the leases that it holds were granted.
    """

    name: str
    usage_s: float = 0.0
    usage_at: float = 0.0
    held: int = 0
    held_since_s: float = 0.0
    queued: int = 0

    def used_s(self, now: float, half_life_s: float) -> float:
        """Return what it used, faded to `now`."""
        return float(self.usage_s * 0.5 ** (max(0.0, now - self.usage_at) / half_life_s))

    def share_s(self, now: float, half_life_s: float) -> float:
        """Return what counts against it now: what it used, and what it has of the devices that it holds."""
        return self.used_s(now, half_life_s) + self.held * now - self.held_since_s

    def granted(self, now: float) -> Account:
        """Return it with one more device."""
        return replace(self, held=self.held + 1, held_since_s=self.held_since_s + now)

    def gave_back(self, granted_at: float, now: float, half_life_s: float) -> Account:
        """Return it with one device less, charged for the time since `granted_at`."""
        held = self.held - 1
        return replace(
            self,
            usage_s=self.used_s(now, half_life_s) + max(0.0, now - granted_at),
            usage_at=now,
            held=held,
            held_since_s=self.held_since_s - granted_at if held else 0.0,
        )

    def is_idle(self) -> bool:
        """Tell whether it neither holds nor waits for anything."""
        return self.held == 0 and self.queued == 0
