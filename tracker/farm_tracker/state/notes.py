"""Notes: what happened, for people.

Owns: the value of one note. Does not own: what is noted (each rule notes its own).

Invariant: numbers increase by one, also over restarts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the farm's diary. `at` is on the tracker's clock; an empty actor is the farm itself.

    `account` is whose lease or job it is about; empty for what is nobody's.
    """

    number: int
    at: float
    kind: str
    subject: str
    text: str
    actor: str = ""
    account: str = ""
