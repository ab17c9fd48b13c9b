"""Seeds, one after the other: each gives a function and a schedule, compared on every target."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field

from fuzz.chooser import Seeded
from fuzz.compiled import WAYS, check_compiled
from fuzz.functions import random_function
from fuzz.oracle import check_schedule
from fuzz.schedules import Random


@dataclass
class Found:
    """What a batch of seeds gave."""

    triples: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    unsupported: Counter[str] = field(default_factory=Counter)


def run_batch(task: tuple[int, int, dict[str, int]]) -> Found:
    """Run some seeds; each target has every so manieth of them."""
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
                found.triples["interpreter"] += 1
            made.append((seed, function, random.schedule.function))
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            story = f"{function}\n{random.schedule.trace}\n{traceback.format_exc(limit=-5)}"
            found.wrong.append((seed, story))
        found.refused += random.refused
        found.taken += random.taken
    for name in WAYS.keys() & targets.keys():
        run = check_compiled([each for each in made if each[0] % targets[name] == 0], name)
        found.triples[name] += run.ran
        found.wrong += run.wrong
        found.unsupported += run.refused
    return found
