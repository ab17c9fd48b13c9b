"""Content digests: SHA-256 and size, and canonical JSON to digest structured data.

Owns: the form of digests, and of JSON that is compared byte for byte. Does not own: where blobs are.

Invariant: a `Digest` that exists is well formed; equal values have equal canonical JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from farm.errors import InvalidInput

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """SHA-256 (64 lower-case hex digits) and size in bytes of some bytes."""

    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        if not _HEX.fullmatch(self.sha256):
            raise InvalidInput(
                f"digest: not 64 lower-case hex digits ({self.sha256[:80]!r}); pass a SHA-256"
            )
        if self.size_bytes < 0:
            raise InvalidInput(f"digest: negative size ({self.size_bytes}); pass the size in bytes")

    def __str__(self) -> str:
        """Return ``sha256:HEX/SIZE``, the form that users see."""
        return f"sha256:{self.sha256}/{self.size_bytes}"


def digest_of(data: bytes | bytearray | memoryview) -> Digest:
    """Return the digest of `data`."""
    return Digest(hashlib.sha256(data).hexdigest(), memoryview(data).nbytes)


def canonical_json(value: object) -> bytes:
    """Encode `value` so that equal values give equal bytes: sorted keys, no spaces, UTF-8, no NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()
