"""Crash points: named places at which a process kills itself, if it was told to when it started.

Owns: reading which one, counting, the kill. Does not own: the names (each service has a table of its own).

Invariant: a process that was told nothing never ends here, and pays one comparison a place.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping

from farm.errors import InvalidInput

_LOG = logging.getLogger("farm.crash")


class CrashPoints:
    """The crash points of one service.

    Parameters
    ----------
    variable
        Name of the environment variable that says ``NAME`` or ``NAME:N``: die as NAME is passed for the N-th time.
    names
        What is true at each of them.
    """

    def __init__(self, variable: str, names: Mapping[str, str]) -> None:
        self.variable = variable
        self.names = names
        self._armed = ""
        self._left = 0

    @property
    def is_armed(self) -> bool:
        """Whether this process will kill itself."""
        return self._armed != ""

    def arm(self, environment: Mapping[str, str]) -> None:
        """Read the variable; call it once, at the start.

        Raises
        ------
        InvalidInput
            It names no crash point, or N is not a positive number.
        """
        text = environment.get(self.variable, "")
        name, colon, count = text.partition(":")
        if not text:
            return
        if name not in self.names or (colon and not (count.isdecimal() and int(count) > 0)):
            raise InvalidInput(
                f"{self.variable}: no crash point ({text[:80]!r}); unset it, or use NAME or NAME:N with one of "
                f"{', '.join(self.names)}"
            )
        self._armed, self._left = name, int(count or 1)
        _LOG.warning("%s=%s: this process will kill itself", self.variable, text)

    def passed(self, name: str) -> None:
        """Die here if this is the place and the time; nothing is flushed, closed or told."""
        if name != self._armed:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # in any other thread than the one that ends first
