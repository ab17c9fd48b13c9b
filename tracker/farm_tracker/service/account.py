"""AccountService on the wire.

Owns: its messages' checks. Does not own: what a limit means (`state.account`). Invariant: an answer was stored before
it was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farm.api.v1 import account_pb2, account_pb2_grpc
from farm.core.limits import MAX_COUNT
from farm.errors import InvalidInput
from farm_tracker.service.convert import check_range, check_text
from farm_tracker.service.job import MAX_ACCOUNT_BYTES, actor
from farm_tracker.service.streams import errors_to_status
from farm_tracker.state.account import Account, AccountLimits
from farm_tracker.state.events import AccountLimited

if TYPE_CHECKING:
    import grpc

    from farm_tracker.tracker import Tracker

    Context = grpc.aio.ServicerContext[Any, Any]

MAX_DEVICE_S = 1e12
MIN_WINDOW_S = 1.0
DEFAULT_WINDOW_S = 86_400.0
MAX_WINDOW_S = 366 * 86_400.0


class AccountService(account_pb2_grpc.AccountServiceServicer):
    """The accounts of one tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    async def ListAccounts(
        self, request: account_pb2.ListAccountsRequest, context: Context
    ) -> account_pb2.ListAccountsResponse:
        """Return what accounts use and may use."""
        async with errors_to_status(context):
            asked = check_text(request.account, "account", MAX_ACCOUNT_BYTES)
            known = sorted(self._tracker.state.accounts.items())
            shown = [self._shown(it) for name, it in known if asked in ("", name)]
            await self._tracker.settled()
            return account_pb2.ListAccountsResponse(accounts=shown)
        raise AssertionError("unreachable")

    async def SetLimits(
        self, request: account_pb2.SetLimitsRequest, context: Context
    ) -> account_pb2.SetLimitsResponse:
        """Let an account have more or less."""
        async with errors_to_status(context):
            name = check_text(request.account, "account", MAX_ACCOUNT_BYTES)
            if not name.strip():
                raise InvalidInput("account: no name; say whose limits are meant")
            await self._tracker.post(AccountLimited(name, _limits(request.limits), actor()))
            found = self._tracker.state.accounts.get(name) or Account(name)
            return account_pb2.SetLimitsResponse(account=self._shown(found))
        raise AssertionError("unreachable")

    def _shown(self, account: Account) -> account_pb2.Account:
        now, defaults = self._tracker.clock.now(), self._tracker.state.limits
        end = account.window_end()
        return account_pb2.Account(
            name=account.name,
            devices=account.held,
            queued=account.queued,
            usage_s=account.share_s(now, defaults.half_life_s),
            limits=account_pb2.AccountLimits(
                devices=account.limits.held,
                queued=account.limits.queued,
                device_seconds=account.limits.device_s,
                window_s=account.limits.window_s,
            ),
            window_used_s=account.spent_s(now),
            window_left_s=0.0 if end is None else max(0.0, end - now),
            waits_for=account.limit_reached(now, defaults),
        )


def _limits(message: account_pb2.AccountLimits) -> AccountLimits:
    """Return checked limits; raises InvalidInput."""
    window_s = message.window_s or DEFAULT_WINDOW_S
    return AccountLimits(
        held=_count(message, "devices"),
        queued=_count(message, "queued"),
        device_s=check_range(message.device_seconds, 0.0, MAX_DEVICE_S, "device_seconds")
        if message.HasField("device_seconds")
        else None,
        window_s=check_range(window_s, MIN_WINDOW_S, MAX_WINDOW_S, "window_s"),
    )


def _count(message: account_pb2.AccountLimits, name: str) -> int | None:
    if not message.HasField(name):  # type: ignore[arg-type]
        return None
    return int(check_range(getattr(message, name), 0, MAX_COUNT, name))
