"""Faults that depend on what ran before, in words.

Owns what is said of fuel, semaphores and rows never written, for every machine. Does not own when it is said
(`farm.ea.emulator`, `farm.runtime.ea`) or rules of one instruction (`farm.ea.checks`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farm.ea.access import RowAccess
from farm.ea.faults import Fault, Problem
from farm.ea.isa import Engine


def out_of_fuel(used: int, limit: int) -> Problem:
    """Return the fault of a run that would use more than it was given."""
    return Problem(Fault.FUEL, f"needs {used} of {limit} units of fuel", (0, used), limit)


def no_token(number: int) -> Problem:
    """Return the fault of a wait that no earlier post serves."""
    what = f"awaits semaphore {number}, which nothing before it posts"
    return Problem(Fault.SEM_UNDERFLOW, what, (0, 1), 0)


def too_many_tokens(number: int, count: int, limit: int) -> Problem:
    """Return the fault of a count beyond the highest."""
    what = f"semaphore {number} counts {count}, its limit is {limit}"
    return Problem(Fault.SEM_OVERFLOW, what, (0, count), limit)


def second_user(number: int, deed: str, engine: Engine, first: Engine) -> Problem:
    """Return the fault of a semaphore that two engines have ``posted`` or ``awaited``."""
    what = f"semaphore {number} is {deed} by {engine.name} and by {first.name}"
    return Problem(Fault.SEM_MULTI, what)


def no_halt() -> Problem:
    """Return the fault of a program that runs past its end."""
    return Problem(Fault.NO_HALT, "the program does not end in HALT")


def never_written(access: RowAccess, written: NDArray[np.bool_]) -> Problem | None:
    """Return the fault of reading rows that hold nothing, None if all do.

    Parameters
    ----------
    written
        Which rows of the access's memory hold something.
    """
    index = access.index
    if access.write or written[index].all():
        return None
    never = index[~written[index]]
    span = (int(never.min()), int(never.max()) + 1)
    what = f"reads rows [{span[0]}:{span[1]}) of {access.space.name}, never written"
    return Problem(Fault.UNINIT, what, span)
