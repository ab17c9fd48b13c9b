"""Accounts in the simulated farm: people who limit them, and what must hold then.

Owns: the accounts of clients, the wishes of people, the checks of both. Does not own: what a limit means
(`farm_tracker.state`, the real code).

Invariant: when everything is mended no account has a limit of its own, so that all that waits can come to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm_tracker.state.account import NO_LIMITS, AccountLimits
from farm_tracker.state.events import AccountLimited

from farm.errors import InfrastructureError
from simulation.world import Violation

if TYPE_CHECKING:
    from farm_tracker.state.state import Changes, State

    from simulation.disk import Disk
    from simulation.farm import Farm

ACCOUNTS = ("ann", "ben")
LIMITS = {
    "no device": AccountLimits(held=0),
    "one device": AccountLimits(held=1),
    "one waits": AccountLimits(queued=1),
    "5 s in 12 s": AccountLimits(device_s=5.0, window_s=12.0),
    "nothing": AccountLimits(device_s=0.0, window_s=8.0),
}
ROUNDING_S = 1e-6


class Accountant:
    """People who limit accounts and take that back; they ask for one thing after the other."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm
        self._wishes: dict[str, AccountLimits] = {}
        self._asking: set[str] = set()

    def limit(self, account: str, what: str, for_s: float) -> None:
        """Limit an account for a while."""
        self._wish(account, LIMITS[what])
        self._farm.world.later(for_s, self._wish, account, NO_LIMITS)

    def lift(self) -> None:
        """Take every limit back, until it is told that this is done."""
        for account in ACCOUNTS:
            self._wish(account, NO_LIMITS)

    def _wish(self, account: str, limits: AccountLimits) -> None:
        self._wishes[account] = limits
        if account not in self._asking:
            self._asking.add(account)
            self._ask(account)

    def _ask(self, account: str) -> None:
        event = AccountLimited(account, self._wishes[account], "olga")

        def answered(answer: object) -> None:
            if isinstance(answer, InfrastructureError):
                self._farm.world.later(1.0, self._ask, account)
            elif self._wishes[account] != event.limits:
                self._ask(account)
            else:
                self._asking.discard(account)

        self._farm.call(lambda tracker: tracker.set_limits(event, answered), answered)


class AccountChecks:
    """What must hold of accounts after each step and each start."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._held: dict[str, int] = {}
        self._wished: dict[str, list[AccountLimits]] = {}

    def loaded(self, state: State) -> None:
        """Limits that were stored are there again."""
        self._held = {name: it.held for name, it in state.accounts.items()}
        for name, account in self._disk.truth.accounts.items():
            stored = account.limits if account is not None else NO_LIMITS
            found = state.accounts.get(name)
            if stored != (found.limits if found is not None else NO_LIMITS):
                raise Violation("account", f"{name}: {stored} was stored, {found} was loaded")

    def wished(self, event: AccountLimited) -> int:
        """Note what people want of an account; return the number of the wish."""
        wishes = self._wished.setdefault(event.account, [])
        wishes.append(event.limits)
        return len(wishes) - 1

    def told(self, event: AccountLimited, number: int) -> None:
        """What people are told is done is stored, unless they wished something else since."""
        account = self._disk.truth.accounts.get(event.account)
        stored = account.limits if account is not None else NO_LIMITS
        if stored not in self._wished[event.account][number:]:
            raise Violation("account", f"{event.account}: told of {event.limits}, stored {stored}")

    def stepped(self, state: State, changes: Changes, now: float) -> None:
        """Nobody gets a device beyond what the account may have."""
        for name, account in changes.accounts.items():
            before = self._held.get(name, 0)
            self._held[name] = account.held if account is not None else 0
            if account is None or account.held <= before:
                continue
            if account.held > account.max_held(state.limits):
                raise Violation("account", f"{name}: holds {account.held} of {account.limits}")
            budget_s = account.limits.device_s
            if budget_s is not None and account.spent_s(now) > budget_s + ROUNDING_S:
                spent_s = account.spent_s(now)
                raise Violation("account", f"{name}: got more after {spent_s} s of {budget_s} s")
