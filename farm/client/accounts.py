"""Accounts, as those who run a farm use them.

Owns: those calls and what they return. Does not own: what a limit means (the tracker).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from farm.api.v1 import account_pb2, account_pb2_grpc
from farm.client.calls import Calls


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """What an account uses and may use.

    Attributes
    ----------
    devices, queued
        Devices that it holds; requests and jobs that wait.
    usage_s
        Device-seconds, halved every hour: what the order of the queue goes by.
    max_devices, max_queued, max_device_seconds
        Its own limits; None: as for every account.
    window_s
        What `max_device_seconds` are for, in seconds.
    window_used_s, window_left_s
        Used in this window, and its rest, in seconds; 0: none is open.
    waits_for
        Which limit keeps it from getting one more device now; empty: none.
    """

    name: str
    devices: int
    queued: int
    usage_s: float
    max_devices: int | None
    max_queued: int | None
    max_device_seconds: float | None
    window_s: float
    window_used_s: float
    window_left_s: float
    waits_for: str

    @staticmethod
    def from_proto(account: account_pb2.Account) -> AccountInfo:
        """Return what a message says."""
        limits = account.limits
        return AccountInfo(
            name=account.name,
            devices=account.devices,
            queued=account.queued,
            usage_s=account.usage_s,
            max_devices=limits.devices if limits.HasField("devices") else None,
            max_queued=limits.queued if limits.HasField("queued") else None,
            max_device_seconds=limits.device_seconds if limits.HasField("device_seconds") else None,
            window_s=limits.window_s,
            window_used_s=account.window_used_s,
            window_left_s=account.window_left_s,
            waits_for=account.waits_for,
        )


class AccountCalls(Calls):
    """The part of a client that is about accounts."""

    @cached_property
    def _account_stub(self) -> account_pb2_grpc.AccountServiceStub:
        return account_pb2_grpc.AccountServiceStub(self._channel)

    def accounts(self) -> list[AccountInfo]:
        """Return the accounts that use something or have limits, by name."""
        request = account_pb2.ListAccountsRequest()
        answer = self._patience().call(
            lambda limit: self._account_stub.ListAccounts(request, timeout=limit)
        )
        return [AccountInfo.from_proto(it) for it in answer.accounts]

    def limit_account(
        self,
        account: str,
        *,
        devices: int | None = None,
        queued: int | None = None,
        device_seconds: float | None = None,
        window_s: float = 0.0,
    ) -> AccountInfo:
        """Set what an account may have, in place of what was set before; what it holds stays.

        Parameters
        ----------
        devices
            At once; at the limit requests and jobs wait. None: as for every account.
        queued
            Requests and jobs that wait; at the limit new ones are refused.
        device_seconds
            In each window of `window_s` seconds (0: a day); once used, requests and jobs wait for the next.

        Raises
        ------
        InvalidInput
            A value is out of range.
        NotAllowed
            You are no admin.
        """
        limits = account_pb2.AccountLimits(
            devices=devices, queued=queued, device_seconds=device_seconds, window_s=window_s
        )
        request = account_pb2.SetLimitsRequest(account=account, limits=limits)
        answer = self._patience().call(
            lambda limit: self._account_stub.SetLimits(request, timeout=limit)
        )
        return AccountInfo.from_proto(answer.account)
