"""Grouping units of work without ever making a circle.

Owns: the grouping. Does not own: what units are (`farm.graph.partition`).

Invariant: linear in units and edges; if every group becomes one unit, the units still form no circle.

Notes
-----
Kahn's order in waves, as ONNX Runtime groups nodes for its execution providers: chosen units that are ready join the
open group; another unit that reads from the open group waits until the group is closed, so nothing that depends on it
can get into that group; the group closes when nothing else is ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


def waves(followers: Sequence[Iterable[int]], chosen: Sequence[bool]) -> list[list[int]]:
    """Return groups of the chosen units, each in an order in which it can run.

    Parameters
    ----------
    followers
        For each unit those that read what it makes, each once.
    chosen
        For each unit whether it may be in a group.
    """
    waits = [0] * len(followers)
    leaders: list[list[int]] = [[] for _ in followers]
    for unit, after in enumerate(followers):
        for follower in after:
            waits[follower] += 1
            leaders[follower].append(unit)
    ready = deque(unit for unit, count in enumerate(waits) if not count)
    groups: list[list[int]] = []
    while ready:
        group: list[int] = []
        inside: set[int] = set()
        later: deque[int] = deque()
        while ready:
            unit = ready.popleft()
            if chosen[unit]:
                group.append(unit)
                inside.add(unit)
            elif not inside.isdisjoint(leaders[unit]):
                later.append(unit)
                continue
            for follower in followers[unit]:
                waits[follower] -= 1
                if not waits[follower]:
                    ready.append(follower)
        if group:
            groups.append(group)
        ready = later
    return groups


def connected(group: Sequence[int], followers: Sequence[Iterable[int]]) -> list[list[int]]:
    """Return the parts of a group that share nothing, each in the group's order."""
    inside = set(group)
    part = {unit: unit for unit in group}

    def find(unit: int) -> int:
        while part[unit] != unit:
            part[unit] = part[part[unit]]
            unit = part[unit]
        return unit

    for unit in group:
        for follower in followers[unit]:
            if follower in inside:
                part[find(follower)] = find(unit)
    parts: dict[int, list[int]] = {}
    for unit in group:
        parts.setdefault(find(unit), []).append(unit)
    return list(parts.values())


def in_order(followers: Sequence[Iterable[int]]) -> list[int]:
    """Return all units so that each comes after those that it reads from; fewer if there is a circle."""
    waits = [0] * len(followers)
    for after in followers:
        for follower in after:
            waits[follower] += 1
    ready = deque(unit for unit, count in enumerate(waits) if not count)
    order: list[int] = []
    while ready:
        unit = ready.popleft()
        order.append(unit)
        for follower in followers[unit]:
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    return order
