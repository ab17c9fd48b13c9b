"""How long something waits before it is tried again after a failure of the farm.

Owns: that length. Does not own: what is tried again (`jobs`, `builds`).

Invariant: pure: the jitter comes from the name of what failed, so that equal histories give equal delays, while
what failed at the same moment comes back at different ones.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm_tracker.state.model import Limits


def delay_s(limits: Limits, failures: int, subject: str) -> float:
    """Return the seconds to wait after failure number `failures` (1 is the first) of `subject`.

    Between half of ``backoff_s * 2 ** (failures - 1)``, at most `backoff_ceiling_s`, and all of it.
    """
    longest_s = min(limits.backoff_ceiling_s, limits.backoff_s * 2.0 ** (max(1, failures) - 1))
    jitter = zlib.crc32(subject.encode()) / 0xFFFF_FFFF
    return float(longest_s * (0.5 + 0.5 * jitter))
