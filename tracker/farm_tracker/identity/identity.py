"""All of identity for one data folder.

Owns: the folder's key and files, the admin's token of the first start, the credentials that a tracker leaves for its
own user. Does not own: the parts.

Invariant: every file with a secret has mode 0600; what is left for the tracker's own user is worth nothing once the
tracker has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.core.files import write_atomic
from farm.errors import FarmError, InfrastructureError
from farm.rpc import credentials
from farm.rpc.credentials import Credentials
from farm_tracker.identity.audit import AuditLog
from farm_tracker.identity.guard import Guard
from farm_tracker.identity.leases import LeaseTokens
from farm_tracker.identity.store import TokenStore
from farm_tracker.identity.tokens import Tokens

if TYPE_CHECKING:
    from pathlib import Path

    from farm.core.clock import Clock

KEY_FILE = "identity.key"
KEY_BYTES = 32
ADMIN_FILE = "admin.token"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Tokens, lease tokens, audit log and guard of one tracker."""

    tokens: Tokens
    leases: LeaseTokens
    audit: AuditLog
    guard: Guard
    local: Credentials
    _store: TokenStore

    @staticmethod
    async def open(folder: Path, clock: Clock, *, ca: bytes = b"") -> Identity:
        """Open, or begin, the identity of a data folder.

        Parameters
        ----------
        ca
            The tracker's certificate, for the credentials of its own user; empty: plain text.

        Raises
        ------
        InfrastructureError
            The folder's key has gone, or is damaged, while tokens depend on it.
        """
        key, is_new = await asyncio.to_thread(_key, folder)
        store = await asyncio.to_thread(TokenStore, folder / "identity.db")
        tokens = Tokens(store, key, clock)
        if is_new:
            text, token = await tokens.create("admin")
            await asyncio.to_thread(write_atomic, folder / ADMIN_FILE, f"{text}\n".encode())
            log.info(
                "first start: token %s of an admin is in %s", token.token_id, folder / ADMIN_FILE
            )
        audit = AuditLog(folder / "audit.jsonl", clock)
        local = Credentials(tokens.create_for_this_run(), ca)
        return Identity(tokens, LeaseTokens(key), audit, Guard(tokens, audit), local, store)

    def publish(self, address: str) -> None:
        """Leave credentials for an address to this user's own commands on this machine."""
        try:
            credentials.prune()
            path = credentials.save(address, self.local, pid=os.getpid())
        except (FarmError, OSError) as error:
            log.warning(
                "no credentials are left for this user's commands (%s): set FARM_TOKEN", error
            )
            return
        log.info("this user's commands find their credentials in %s", path)

    def withdraw(self, address: str) -> None:
        """Take those credentials away."""
        try:
            credentials.forget(address, self.local.token)
        except (FarmError, OSError) as error:
            log.warning("credentials of this run were not removed (%s)", error)

    async def close(self) -> None:
        """Store what is pending and close the files."""
        await self.tokens.close()
        await asyncio.to_thread(self._store.close)
        self.audit.close()


def _key(folder: Path) -> tuple[bytes, bool]:
    """Return the folder's key, and whether it was made just now."""
    path = folder / KEY_FILE
    if not path.exists():
        if (folder / "identity.db").exists() and (folder / ADMIN_FILE).exists():
            raise InfrastructureError(
                f"identity: {path} has gone, so that no token can be checked; restore it, or remove "
                "identity.db and admin.token as well to begin anew"
            )
        key = secrets.token_bytes(KEY_BYTES)
        write_atomic(path, key)
        return key, True
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise InfrastructureError(
            f"identity: {path} is damaged ({len(key)} bytes instead of {KEY_BYTES}); restore it"
        )
    return key, not (folder / ADMIN_FILE).exists()
