"""Accounts: who pays for devices, in device-seconds that fade, and what each may use.

Owns: an account's value, its share and its limits. Does not own: who may use an account, or when it is charged
(`queue`).

Invariant: `held` and `queued` count what the leases and jobs of the account say (`invariants` computes both). An
account with a budget has a window open while it holds something, and from its first grant to the window's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.core.values import replace

if TYPE_CHECKING:
    from farm_tracker.state.model import Limits

FORGET_AFTER_HALF_LIVES = 20


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """What people let an account have; None: what every account may have.

    Attributes
    ----------
    held
        Devices at once.
    queued
        Requests and jobs that wait.
    device_s
        Device-seconds in each window of `window_s` seconds; None: as many as it gets.
    """

    held: int | None = None
    queued: int | None = None
    device_s: float | None = None
    window_s: float = 86_400.0

    def __str__(self) -> str:
        """Return them in words."""
        words = []
        if self.held is not None:
            words.append(f"{self.held} devices at once")
        if self.queued is not None:
            words.append(f"{self.queued} waiting")
        if self.device_s is not None:
            words.append(f"{self.device_s:g} device-seconds in {self.window_s:g} s")
        return ", ".join(words) or "none of its own"


NO_LIMITS = AccountLimits()


@dataclass(frozen=True, slots=True)
class Account:
    """What one account used, holds and waits for.

    `usage_s` are device-seconds as of `usage_at`, halved every half-life since; `held_since_s` is the sum of the
    points in time at which the leases that it holds were granted. `window_used_s` is what it used since `window_at`,
    less what it holds had used by then.
    """

    name: str
    usage_s: float = 0.0
    usage_at: float = 0.0
    held: int = 0
    held_since_s: float = 0.0
    queued: int = 0
    limits: AccountLimits = NO_LIMITS
    window_at: float | None = None
    window_used_s: float = 0.0

    def used_s(self, now: float, half_life_s: float) -> float:
        """Return what it used, faded to `now`."""
        return float(self.usage_s * 0.5 ** (max(0.0, now - self.usage_at) / half_life_s))

    def share_s(self, now: float, half_life_s: float) -> float:
        """Return what counts against it now: what it used, and what it has of the devices that it holds."""
        return self.used_s(now, half_life_s) + self._holding_s(now)

    def spent_s(self, now: float) -> float:
        """Return what it used of its budget in this window; 0 without one."""
        return 0.0 if self.window_at is None else self.window_used_s + self._holding_s(now)

    def window_end(self) -> float | None:
        """Return when its window ends; None: none is open."""
        return None if self.window_at is None else self.window_at + self.limits.window_s

    def max_held(self, defaults: Limits) -> int:
        """Return how many devices it may hold at once."""
        return defaults.account_held if self.limits.held is None else self.limits.held

    def max_queued(self, defaults: Limits) -> int:
        """Return how many requests and jobs of it may wait."""
        return defaults.account_queued if self.limits.queued is None else self.limits.queued

    def limit_reached(self, now: float, defaults: Limits) -> str:
        """Return which limit keeps it from getting one more device; empty: none."""
        if self.held >= self.max_held(defaults):
            return f"account {self.name} holds {self.held} devices, its limit"
        budget_s, end = self.limits.device_s, self.window_end()
        if budget_s is not None and end is not None and self.spent_s(now) >= budget_s:
            return (
                f"account {self.name} has used its {budget_s:g} device-seconds of "
                f"{self.limits.window_s:g} s; more in {max(0.0, end - now):.0f} s"
            )
        return ""

    def granted(self, now: float) -> Account:
        """Return it with one more device."""
        opened = self if self.window_at is not None else self.with_window(now)
        return replace(opened, held=self.held + 1, held_since_s=self.held_since_s + now)

    def gave_back(self, granted_at: float, now: float, half_life_s: float) -> Account:
        """Return it with one device less, charged for the time since `granted_at`."""
        held, used_s = self.held - 1, max(0.0, now - granted_at)
        return replace(
            self,
            usage_s=self.used_s(now, half_life_s) + used_s,
            usage_at=now,
            held=held,
            held_since_s=self.held_since_s - granted_at if held else 0.0,
            window_used_s=self.window_used_s + used_s if self.window_at is not None else 0.0,
        )

    def limited(self, limits: AccountLimits, now: float) -> Account:
        """Return it with other limits; what it used so far counts in none of their windows."""
        other = replace(self, limits=limits, window_at=None, window_used_s=0.0)
        return other.with_window(now) if self.held else other

    def with_window(self, now: float) -> Account:
        """Return it with a window that begins now, if it has a budget."""
        if self.limits.device_s is None:
            return self
        return replace(self, window_at=now, window_used_s=-self._holding_s(now))

    def without_window(self, now: float) -> Account:
        """Return it after the end of its window: with the next one if it holds something, else with none."""
        closed = replace(self, window_at=None, window_used_s=0.0)
        return closed.with_window(now) if self.held else closed

    def is_idle(self) -> bool:
        """Tell whether it neither holds nor waits for anything, and nobody set limits for it."""
        return self.held == 0 and self.queued == 0 and self.limits == NO_LIMITS

    def _holding_s(self, now: float) -> float:
        """Return how long the devices that it holds have been held, together."""
        return self.held * now - self.held_since_s if self.held else 0.0
