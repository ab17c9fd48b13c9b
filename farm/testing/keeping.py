"""How much a tracker keeps, for how long.

Owns: the values and the tracker's arguments for them. Does not own: what they do, which is the tracker's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keeping:
    """Limits of what a tracker keeps; None: the tracker's own default.

    Attributes
    ----------
    store_bytes
        What all blobs together may take. Default: half of the disk, at most 64 GiB.
    jobs_s
        How long an ended job is kept, with its log and results. Default: a day.
    records_s
        How long builds, events and unused entries of the build cache are kept. Default: 30 days.
    devices_s
        How long a device that is offline is kept, with its agent. Default: 7 days.
    """

    store_bytes: int | None = None
    jobs_s: float | None = None
    records_s: float | None = None
    devices_s: float | None = None

    def arguments(self) -> list[str]:
        """Return the tracker's arguments."""
        named = {
            "--store-limit-bytes": self.store_bytes,
            "--keep-jobs-s": self.jobs_s,
            "--keep-records-s": self.records_s,
            "--keep-devices-s": self.devices_s,
        }
        return [word for name, it in named.items() if it is not None for word in (name, str(it))]


KEEPING = Keeping()
