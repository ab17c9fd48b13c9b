"""What a decision says: which configuration is the best under a key.

Owns: that value, checked, and its plain form. Does not own: deciding (`farm.tune.tuner`), or which of several decisions
stands (`standing`).

Invariant: `Winner.from_plain(winner.to_plain()) == winner`; its id depends on what it says and on nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from farm.errors import InvalidInput
from farm.tune.expression import Value
from farm.tune.records.record import Key, canonical, checked, is_number

MAX_REPLACED = 10_000
_ID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Winner:
    """A decision: which configuration is the best under a key.

    Attributes
    ----------
    trace
        Of its schedule.
    value
        As measured in the comparison that decided, in `unit`.
    ratio, low, high
        Its time against that of the one before, with the 95 % interval; 1 if there was none or it stayed.
    replaces
        Ids of the decisions in whose place it was put: the best of them was compared with it, the others were known to
        be no better. None if it was recorded before decisions said so.
    """

    key: Key
    template: str
    configuration: Mapping[str, Value]
    trace: str
    value: float
    unit: str
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0
    run: str = ""
    wall: float = 0.0
    replaces: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("value", "ratio", "low", "high"):
            number = getattr(self, name)
            if not is_number(number) or number <= 0:
                raise InvalidInput(
                    f"winner: bad {name} ({str(number)[:80]}); it is a number above 0"
                )

    def to_plain(self) -> dict[str, Any]:
        """Return it as what JSON has."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        del plain["key"], plain["replaces"]
        if self.replaces is not None:  # else as it was recorded, so that its id stays
            plain["replaces"] = list(self.replaces)
        return {**asdict(self.key), **plain, "configuration": dict(self.configuration)}

    @property
    def id(self) -> str:
        """Digest of all that it says."""
        return hashlib.sha256(canonical(self.to_plain()).encode()).hexdigest()[:_ID_DIGITS]

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Winner:
        """Return the decision that a plain form says; raises InvalidInput if it is malformed."""
        known = {each.name: each.type for each in fields(Winner)}
        del known["key"], known["replaces"]
        keys = [each.name for each in fields(Key)]
        replaces = None
        if isinstance(plain, Mapping) and "replaces" in plain:
            plain = dict(plain)
            replaces = _ids(plain.pop("replaces"))
        checked(plain, {**dict.fromkeys(keys, "str"), **known}, "winner")
        own = {name: plain[name] for name in known}
        return Winner(Key(**{name: plain[name] for name in keys}), **own, replaces=replaces)


def _ids(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and len(value) <= MAX_REPLACED:
        ids = tuple(each for each in value if isinstance(each, str) and len(each) == _ID_DIGITS)
        if len(ids) == len(value):
            return ids
    raise InvalidInput(f"winner: bad replaces ({ascii(value)[:80]}); it is a list of ids")
