"""Random schedules: steps that often fit, tried one after the other; what is refused is counted and left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from farm.errors import ScheduleError
from farm.ir import Function
from farm.schedule import Schedule
from fuzz.chooser import Chooser

MAX_STEPS = 12


class Random:
    """One schedule being made.

    Attributes
    ----------
    refused
        How often each kind of refusal came, names and numbers left out.
    """

    def __init__(self, choose: Chooser, function: Function) -> None:
        self.choose = choose
        self.schedule = Schedule(function)
        self.refused: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()

    def run(self) -> Function:
        """Try up to `MAX_STEPS` steps and return the function."""
        if self.choose.number(0, 2):
            self.schedule.fast_math(reassociate=True)
        for _ in range(self.choose.number(0, MAX_STEPS)):
            step = self.choose.one(STEPS)
            name = step.__name__.removeprefix("_")
            try:
                step(self)
                self.schedule.function  # noqa: B018 - lowering may refuse, too
            except ScheduleError as error:
                self.refused[_kind(error.message)] += 1
                if not self.lowers():
                    return self.again()
            else:
                self.taken[name] += 1
        return self.schedule.function

    def lowers(self) -> bool:
        """Tell whether the state is a function: a refused step of several primitives may have taken some."""
        try:
            self.schedule.function  # noqa: B018 - it lowers
        except ScheduleError:
            return False
        return True

    def again(self) -> Function:
        """Return the function before the step that could not be lowered."""
        from farm.schedule import Trace

        shorter = Trace(self.schedule.trace.steps[:-1])
        self.schedule = shorter.apply(self.schedule.original)
        return self.schedule.function if self.lowers() else self.again()

    def block(self) -> str:
        return self.choose.one([leaf.name for leaf in self.schedule._state.all_leaves()])

    def loop(self) -> str:
        loops = [x for name in [self.block()] for x in self.schedule.get_loops(name)]
        if not loops:
            raise ScheduleError("none of loop: there is none")
        return self.choose.one(loops)

    def loops(self) -> list[str]:
        return [str(x) for x in self.schedule.get_loops(self.block())]

    def factors(self) -> list[int | None]:
        some: list[int | None] = [None, self.choose.one((2, 3, 4, 1, 5))]
        if self.choose.number(0, 3) == 3:
            some.append(self.choose.number(1, 3))
        if self.choose.number(0, 5) == 5:
            some.reverse()
        return some


def _kind(message: str) -> str:
    """Return a message without names and numbers."""
    head, _, tail = message.partition(": ")
    primitive = head.split(" of ")[0]
    words = re.sub(r"\b\w*[_\d]\w*\b|\b[a-z]\b|\[[^\]]*\]|\b(top|total|safe)\b", "…", tail)
    return f"{primitive}: {re.sub('(… ?,? ?)+', '… ', words)[:110]}"


def _split(made: Random) -> None:
    tail = made.choose.one(("guard", "guard", "peel"))
    made.schedule.split(made.loop(), made.factors(), tail=tail)


def _fuse(made: Random) -> None:
    loops = made.loops()
    start = made.choose.number(0, max(0, len(loops) - 2))
    made.schedule.fuse(*loops[start : start + made.choose.number(2, 3)])


def _reorder(made: Random) -> None:
    loops = made.loops()
    order: list[str] = []
    while loops:
        order.append(loops.pop(made.choose.number(0, len(loops) - 1)))
    made.schedule.reorder(*order[: max(2, made.choose.number(2, 5))])


def _kinds(made: Random) -> None:
    give = made.choose.one(("vectorize", "parallel", "unroll"))
    getattr(made.schedule, give)(made.loop())


def _annotate(made: Random) -> None:
    made.schedule.annotate(made.loop(), "hint", made.choose.number(0, 3))


def _compute_at(made: Random) -> None:
    made.schedule.compute_at(made.block(), made.loop())


def _reverse_compute_at(made: Random) -> None:
    made.schedule.reverse_compute_at(made.block(), made.loop())


def _compute_inline(made: Random) -> None:
    made.schedule.compute_inline(made.block())


def _scope(made: Random) -> str:
    return made.choose.one(("global", "stack", "register"))


def _cache_read(made: Random) -> None:
    copy = made.schedule.cache_read(made.block(), made.choose.number(0, 1), _scope(made))
    if made.choose.number(0, 1):
        made.schedule.compute_at(copy, made.loop())


def _cache_write(made: Random) -> None:
    copy = made.schedule.cache_write(made.block(), 0, _scope(made))
    if made.choose.number(0, 1):
        made.schedule.reverse_compute_at(copy, made.loop())


def _cache_inplace(made: Random) -> None:
    block = made.block()
    loops = made.schedule.get_loops(block)
    if loops:
        made.schedule.cache_inplace(block, made.choose.one(loops), _scope(made))


def _store_inplace(made: Random) -> None:
    made.schedule.store_inplace(made.block(), made.choose.number(0, 1))


def _set_scope(made: Random) -> None:
    made.schedule.set_scope(made.block(), 0, _scope(made))


def _decompose_reduction(made: Random) -> None:
    block = made.block()
    loops = made.schedule.get_loops(block)
    if loops:
        made.schedule.decompose_reduction(block, made.choose.one(loops))


def _rfactor(made: Random) -> None:
    made.schedule.rfactor(made.loop(), made.choose.number(0, 1))


MAPS = {
    0: ["lambda: (0,)"],
    1: ["lambda i: (i // 3, i % 3)", "lambda i: (i % 2, i // 2)", "lambda i: (i + 1,)"],
    2: [
        "lambda i, j: (j, i)",
        "lambda i, j: (j // 4, i, j % 4)",
        "lambda i, j: (i // 2, j // 3, i % 2, j % 3)",
        "lambda i, j: (i, j // 2)",
    ],
    3: ["lambda i, j, k: (k, i, j)", "lambda i, j, k: (j, i // 2, k, i % 2)"],
}


def _transform_layout(made: Random) -> None:
    block = made.block()
    which = made.choose.one((("write", 0), ("read", 0), ("read", 1)))
    rank = len(made.schedule.shape_of(block, *which))
    maps = MAPS.get(rank, ["lambda *i: i"])
    made.schedule.transform_layout(block, which, made.choose.one(maps))


def _pad_einsum(made: Random) -> None:
    block = made.block()
    count = len(made.schedule.get_loops(block))
    made.schedule.pad_einsum(block, [made.choose.one((1, 4, 3)) for _ in range(count)])


def _tiled(made: Random) -> None:
    """A tile of the result in registers or on the stack, as in a tuned product."""
    choose, sch, block = made.choose, made.schedule, made.block()
    if not sch.get_loops(block):
        return
    copy = sch.cache_write(block, 0, _scope(made)) if choose.number(0, 1) else None
    loops = sch.get_loops(block)[:5]
    outer, inner = [], []
    for loop in loops:
        a, b = sch.split(loop, [None, choose.one((2, 4, 3))])
        outer.append(a)
        inner.append(b)
    if len(loops) > 1:
        sch.reorder(*outer, *inner)
    if copy is not None:
        sch.reverse_compute_at(copy, choose.one(outer))
    elif choose.number(0, 1):
        sch.decompose_reduction(block, outer[0])
        sch.cache_inplace(block, choose.one(outer), _scope(made))
    sch.unroll(choose.one(inner))
    sch.vectorize(choose.one(inner))


def _chained(made: Random) -> None:
    """Each producer computed at a loop of its consumer, from the last one up."""
    blocks = [leaf.name for leaf in made.schedule._state.all_leaves()]
    last = blocks[-1]
    loops = made.schedule.get_loops(last)
    if not loops:
        return
    if made.choose.number(0, 1):
        loops = made.schedule.split(made.choose.one(loops), made.factors())
    for block in reversed(blocks[:-1]):
        made.schedule.compute_at(block, made.choose.one(loops))


def _packed(made: Random) -> None:
    """An operand copied in another order, maybe inside a loop."""
    block = made.block()
    copy = made.schedule.cache_read(block, made.choose.number(0, 1), "global")
    rank = len(made.schedule.shape_of(copy, "write", 0))
    made.schedule.transform_layout(copy, ("write", 0), made.choose.one(MAPS.get(rank, MAPS[0])))
    if made.choose.number(0, 1):
        made.schedule.compute_at(copy, made.choose.one(made.schedule.get_loops(block)))


STEPS: tuple[Callable[[Random], Any], ...] = (
    _split,
    _reorder,
    _kinds,
    _compute_at,
    _tiled,
    _split,
    _reorder,
    _kinds,
    _reverse_compute_at,
    _chained,
    _packed,
    _cache_write,
    _tiled,
    _chained,
    _fuse,
    _cache_read,
    _compute_inline,
    _decompose_reduction,
    _rfactor,
    _cache_inplace,
    _transform_layout,
    _set_scope,
    _store_inplace,
    _pad_einsum,
    _annotate,
)
