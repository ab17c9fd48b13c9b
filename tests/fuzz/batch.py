"""Seeds, one after the other: each gives a function and a schedule, compared on every target."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field

from fuzz.chooser import Seeded
from fuzz.functions import random_function
from fuzz.native import check_native
from fuzz.oracle import check_schedule
from fuzz.schedules import Random


@dataclass
class Found:
    """What a batch of seeds gave."""

    triples: int = 0
    wrong: list[tuple[int, str]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)


def run_batch(task: tuple[int, int, tuple[str, ...]]) -> Found:
    """Run some seeds."""
    first, count, targets = task
    found = Found()
    made = []
    for seed in range(first, first + count):
        choose = Seeded(seed)
        function = random_function(choose)
        random = Random(choose, function)
        try:
            random.run()
            if "interpreter" in targets:
                check_schedule(function, random.schedule, seed)
                found.triples += 1
            made.append((seed, function, random.schedule.function))
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            story = f"{function}\n{random.schedule.trace}\n{traceback.format_exc(limit=-5)}"
            found.wrong.append((seed, story))
        found.refused += random.refused
        found.taken += random.taken
    if "native" in targets:
        found.triples += len(made)
        found.wrong += check_native(made)
    return found
