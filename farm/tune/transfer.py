"""Starting from what is known elsewhere: the best of the most similar device, which is measured again.

Owns: which records are alike, and what is taken from them. Does not own: measuring.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farm.tune.expression import Value
from farm.tune.records.record import Key, Outcome, Record

COUNT = 10
"""Configurations that are taken; more gain little (see the ten best of one card on another)."""


def transferred(
    records: Iterable[Record],
    key: Key,
    template: str,
    fingerprint: Mapping[str, str | None],
    count: int = COUNT,
) -> list[dict[str, Value]]:
    """Return configurations to try first, best first: those of the most similar device for the same workload.

    Parameters
    ----------
    records
        Of the workload, from any device and target.
    key, fingerprint
        Of the device that is tuned for.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.template == template and record.outcome is Outcome.OK:
            groups.setdefault((record.key.target, record.key.host), []).append(record)
    if not groups:
        return []

    def likeness(group: tuple[str, str]) -> tuple[int, int, int]:
        target, host = group
        facts = groups[group][-1].fingerprint
        same = sum(
            value is not None and facts.get(name) == value for name, value in fingerprint.items()
        )
        return (host == key.host, target == key.target, same)

    nearest = groups[max(groups, key=likeness)]
    ranked = sorted(nearest, key=lambda record: record.value or 0.0)
    chosen = {record.configuration_text: dict(record.configuration) for record in ranked}
    return list(chosen.values())[:count]
