"""Which decision stands, of all that were taken under a key.

Owns: that rule. Does not own: the decisions, or where they are kept.

Invariant: it depends on which decisions there are alone, not on the order in which they were added: whoever exports,
imports, or tunes into a database that others use too, has the same answer as everybody with the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterable

from farm.tune.records.record import Key
from farm.tune.records.winner import Winner


def standing(decisions: Iterable[Winner]) -> dict[Key, Winner]:
    """Return for each key the decision that stands.

    Of those that nobody has compared, as of two tunings that did not know of each other, it is the one of the lowest
    value: values of one key are comparable.
    """
    found = {key: min(left, key=_rank) for key, left in _groups(open_decisions(decisions)).items()}
    return dict(sorted(found.items(), key=lambda item: when(item[1])))


def open_decisions(decisions: Iterable[Winner]) -> list[Winner]:
    """Return those in whose place no other of their key was put, oldest first.

    What does not say which ones it replaces (it was recorded before decisions did) replaces all before it.
    """
    found = [each for group in _groups(decisions).values() for each in _open(group)]
    return sorted(found, key=when)


def when(decision: Winner) -> tuple[float, str]:
    """Return what orders decisions in time; no two are equal."""
    return decision.wall, decision.id


def _open(group: list[Winner]) -> list[Winner]:
    replaced = {number for each in group for number in each.replaces or ()}
    silent = max((when(each) for each in group if each.replaces is None), default=(-1.0, ""))
    # All can be replaced only where a clock went back; then all are as good.
    return [each for each in group if each.id not in replaced and when(each) >= silent] or group


def _groups(decisions: Iterable[Winner]) -> dict[Key, list[Winner]]:
    groups: dict[Key, list[Winner]] = {}
    for each in decisions:
        groups.setdefault(each.key, []).append(each)
    return groups


def _rank(decision: Winner) -> tuple[float, float, str]:
    return decision.value, *when(decision)
