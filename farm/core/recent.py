"""What was worked out lately, kept so that it is not worked out again.

Owns: which entries stay. Does not own: what they say.

Invariant: at most so many entries, those used last; threads may share one.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A table of the entries that were used last.

    An entry by something's identity has to hold that, which keeps the identity from being used again.

    Parameters
    ----------
    most
        Entries; from 1.

    Examples
    --------
    >>> recent = Recent(2)
    >>> for name in ("a", "b", "c"):
    ...     recent.keep(name, name.upper())
    >>> recent.get("a"), recent.get("c")
    (None, 'C')
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return an entry, which counts as used; None if it is not there (any more)."""
        with contextlib.suppress(KeyError):  # another thread may drop it at any time
            self._entries.move_to_end(key)
            return self._entries[key]
        return None

    def keep(self, key: K, value: V) -> None:
        """Add an entry, or replace it."""
        self._entries[key] = value
        with contextlib.suppress(KeyError):
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
