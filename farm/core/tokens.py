"""Tokens: secrets that say who calls.

Owns: their form, making them, and what is kept of them. Does not own: what a token allows
(`farm_tracker.identity`) or where a client keeps its own (`farm.rpc.credentials`).

Invariant: a token holds 256 random bits; what is kept of it (`digest_of_token`) does not give it back.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NewType

from farm.errors import InvalidInput

TokenId = NewType("TokenId", str)
RandomBytes = Callable[[int], bytes]

SECRET_BYTES = 32
ID_BYTES = 8
MAX_TOKEN_CHARS = 128
"""Longer texts are not looked at."""

_FORM = re.compile(r"farm_(?P<id>[0-9a-f]{16})_(?P<secret>[A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token and the public id inside it."""

    token_id: TokenId
    text: str = field(repr=False)


def new_token(random_bytes: RandomBytes = secrets.token_bytes) -> TokenText:
    """Return a fresh token; `random_bytes` must be fit for secrets."""
    token_id = random_bytes(ID_BYTES).hex()
    return TokenText(TokenId(token_id), f"farm_{token_id}_{text_of(random_bytes(SECRET_BYTES))}")


def parse_token(text: str) -> TokenText:
    """Return the token that a text is.

    Raises
    ------
    InvalidInput
        It has not the form of a token; the message does not repeat it.
    """
    match = _FORM.fullmatch(text) if len(text) <= MAX_TOKEN_CHARS else None
    if not match:
        raise InvalidInput(
            f"token: malformed ({len(text)} characters); copy it whole, as `farm token create` "
            "printed it"
        )
    return TokenText(TokenId(match["id"]), text)


def digest_of_token(key: bytes, text: str) -> bytes:
    """Return what is kept of a token: HMAC-SHA-256 (RFC 2104) under a key of the farm."""
    return hmac.digest(key, text.encode(), hashlib.sha256)


def equal(a: bytes, b: bytes) -> bool:
    """Compare two digests in a time that tells nothing of where they differ."""
    return hmac.compare_digest(a, b)


def text_of(data: bytes) -> str:
    """Return bytes as URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
