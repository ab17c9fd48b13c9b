"""The recipe for several threads: one loop of each nest becomes parallel.

Owns: which loop. Does not own: the threads.
"""

from __future__ import annotations

import math

from farm.errors import ScheduleError
from farm.schedule import Schedule

SHARES = 8  # iterations of a thread, so that one that is slow does not keep the others waiting long
LAUNCHES = 64  # of threads, at most, that outer loops cause
LEAST = 1 << 15  # steps of a nest that is worth it


def schedule_threads(sch: Schedule, block: str, threads: int) -> None:
    """Make a loop around a block parallel: the first with enough iterations, or else the one with the most.

    Raises
    ------
    ScheduleError
        No loop's iterations are independent, or there is too little to do.
    """
    loops = sch.get_loops(block)
    extents = [sch.extent_of(loop) for loop in loops]
    if math.prod(extents) < LEAST:
        raise ScheduleError(f"threads of {block}: {math.prod(extents)} steps are too few")
    outer = [n for n in range(len(loops)) if math.prod(extents[:n]) <= LAUNCHES]
    enough = [n for n in outer if extents[n] >= SHARES * threads]
    others = sorted((n for n in outer if extents[n] > 1), key=lambda n: -extents[n])
    for number in dict.fromkeys([*enough, *others]):
        trial = sch.copy()
        try:
            trial.parallel(loops[number])
            trial.function  # noqa: B018 - lowering may refuse, too
        except ScheduleError:
            continue
        sch.parallel(loops[number])
        return
    raise ScheduleError(f"threads of {block}: no loop has independent iterations")
