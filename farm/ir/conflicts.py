"""Conflicts between iterations, found while the interpreter runs.

Owns: who touched which element in one run of a parallel or vectorized loop. Does not own: rules that need no run
(`farm.ir.concurrency`).

Invariant: a run that ends without an error had no element that one iteration stored to and another touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from farm.errors import InvalidFunction
from farm.ir.stmt import For

MANY = -1


@dataclass
class Watch:
    """One loop whose iterations must not meet.

    Attributes
    ----------
    iteration
        The one that runs.
    writers, readers
        The iteration that touched an element (buffer, flat index), or `MANY`.
    """

    function: str
    loop: For
    iteration: int = 0
    writers: dict[tuple[str, int], int] = field(default_factory=dict)
    readers: dict[tuple[str, int], int] = field(default_factory=dict)

    def start(self) -> None:
        """Forget what an earlier run of the loop touched."""
        self.writers.clear()
        self.readers.clear()

    def store(self, buffer: str, offset: int) -> None:
        """Note a store."""
        here, key = self.iteration, (buffer, offset)
        if self.writers.setdefault(key, here) != here or self.readers.get(key, here) != here:
            raise self._conflict(buffer, offset)

    def load(self, buffer: str, offset: int) -> None:
        """Note a load."""
        here, key = self.iteration, (buffer, offset)
        if self.writers.get(key, here) != here:
            raise self._conflict(buffer, offset)
        if self.readers.setdefault(key, here) != here:
            self.readers[key] = MANY

    def _conflict(self, buffer: str, offset: int) -> InvalidFunction:
        return InvalidFunction(
            f"function {self.function}: iterations of {self.loop.kind.value} loop {self.loop.var.name} "
            f"meet in {buffer} element {offset} (flat); make it serial"
        )
