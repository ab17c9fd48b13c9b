"""The data folder of a farm: one farm at a time uses it.

Owns: its parts, and its lock. Does not own: what the processes of a farm keep in it.

Invariant: while a lock is open, no other `claim_folder` of the same folder succeeds, in this process or another; it
ends with the process that took it.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from farm.core.files import private_folder
from farm.errors import InvalidInput

PARTS = ("tracker", "agents", "logs")


def claim_folder(folder: Path) -> IO[bytes]:
    """Create the folder and its parts, and return its lock, which its user closes at the end.

    No other user of the machine can look into the parts.

    Raises
    ------
    InvalidInput
        Another farm uses it: a second one would overwrite the logs of the first.
    """
    for name in PARTS:
        private_folder(folder / name)
    lock = (folder / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise InvalidInput(
            f"data folder {folder}: another farm uses it; stop that one, or choose another folder with --data-dir"
        ) from error
    return lock
