"""The audit log: who did what, and what was refused.

Owns: JSON lines in files of bounded size. Does not own: what is written.

Invariant: never more than `FILES` files of `FILE_BYTES`; a flood of refusals is counted, not written; no secret.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from farm.core.clock import Clock

FILE_BYTES = 4 << 20
FILES = 4
REFUSALS_PER_S = 20
REFUSALS_AT_ONCE = 200
MAX_TEXT = 200

log = logging.getLogger(__name__)


class AuditLog:
    """One log. A line: at, who, account, verb, method, subject, outcome; `suppressed` counts refusals left out."""

    def __init__(self, path: Path, clock: Clock, *, file_bytes: int = FILE_BYTES) -> None:
        self._path = path
        self._clock = clock
        self._file_bytes = file_bytes
        self._handle = -1
        self._size = 0
        self._allowance = float(REFUSALS_AT_ONCE)
        self._counted_at = clock.now()
        self._suppressed = 0

    def allowed(self, who: str, account: str, verb: str, method: str, subject: str = "") -> None:
        """Write that somebody did something."""
        self._write(who, account, verb, method, subject, "allowed")

    def refused(self, who: str, account: str, verb: str, method: str, cause: str) -> None:
        """Write that somebody was refused; of many in a short time, only the first."""
        now = self._clock.now()
        more = (now - self._counted_at) * REFUSALS_PER_S
        self._allowance = min(float(REFUSALS_AT_ONCE), self._allowance + more)
        self._counted_at = now
        if self._allowance < 1:
            self._suppressed += 1
            return
        self._allowance -= 1
        self._write(who, account, verb, method, "", f"refused: {cause}")

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _write(
        self, who: str, account: str, verb: str, method: str, subject: str, outcome: str
    ) -> None:
        line: dict[str, object] = {
            "at": round(self._clock.wall(), 3),
            "who": who[:MAX_TEXT],
            "account": account[:MAX_TEXT],
            "verb": verb,
            "method": method[:MAX_TEXT],
            "subject": subject[:MAX_TEXT],
            "outcome": outcome[:MAX_TEXT],
        }
        if self._suppressed:
            line["suppressed"], self._suppressed = self._suppressed, 0
        data = json.dumps(line, ensure_ascii=True).encode() + b"\n"
        try:
            self._append(data)
        except OSError as error:  # such as a full disk, on which results must still commit
            log.warning("audit log: %s", error)

    def _append(self, data: bytes) -> None:
        if self._handle >= 0 and self._size + len(data) > self._file_bytes:
            self.close()
            self._rotate()
        if self._handle < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._handle = os.open(self._path, flags, 0o600)
            self._size = os.fstat(self._handle).st_size
        self._size += os.write(self._handle, data)

    def _rotate(self) -> None:
        for number in range(FILES - 2, 0, -1):
            older = self._path.with_suffix(f".{number}.jsonl")
            if older.exists():
                older.replace(self._path.with_suffix(f".{number + 1}.jsonl"))
        self._path.replace(self._path.with_suffix(".1.jsonl"))
