"""Identifiers: distinct types, so that a lease id cannot be passed for a device id; and their form."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import NewType

AgentId = NewType("AgentId", str)
AttemptId = NewType("AttemptId", str)
DeviceId = NewType("DeviceId", str)
JobId = NewType("JobId", str)
LeaseId = NewType("LeaseId", str)
Epoch = NewType("Epoch", int)

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""What people may call an agent or a device; ids name files and are shown, so nothing else will do."""

IdSource = Callable[[str], str]
"""Makes a fresh id from a prefix, such as ``lease`` → ``lease-4f0c21b79a3d5e80``."""


def random_id(prefix: str) -> str:
    """Return `prefix` and 64 random bits in hex."""
    return f"{prefix}-{secrets.token_hex(8)}"
