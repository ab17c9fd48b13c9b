"""Static checks of a whole program, in one pass over the stream.

Owns the rules between instructions (semaphores, HALT) and the pass that applies all rules. Does
not own rules of one instruction (`farm.ea.checks`) or ordering (`farm.ea.hazards`).

Invariant: a program without findings cannot deadlock or fault on arguments of the lengths given,
and computes the same bits in every legal interleaving. (Every wait follows its post in the stream,
so the oldest unfinished instruction can always run.)
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

from farm.ea.checks import instruction_problems
from farm.ea.faults import Fault, Finding, Problem
from farm.ea.hazards import HazardTracker, Order
from farm.ea.isa import Engine, Halt, Instruction, engine_of
from farm.ea.program import Program

MAX_FINDINGS = 100


def verify(
    program: Program,
    arg_bytes: Sequence[int] | None = None,
    *,
    max_findings: int = MAX_FINDINGS,
) -> list[Finding]:
    """Return what is wrong with `program`, in stream order; an empty list if it is correct.

    Parameters
    ----------
    arg_bytes
        Length of each argument in bytes; by default the program's own minimum lengths.
    max_findings
        Stop after this many.
    """
    lengths = [arg.min_bytes for arg in program.args] if arg_bytes is None else list(arg_bytes)
    findings: list[Finding] = []
    for pc, problem in _problems(program, lengths):
        findings.append(problem.at(program, pc))
        if len(findings) >= max_findings:
            break
    return findings


def check(program: Program, arg_bytes: Sequence[int] | None = None) -> None:
    """Refuse `program` unless `verify` finds nothing.

    Raises
    ------
    InvalidProgram
        The first finding, with its facts in ``details``, and how many there are more.
    """
    findings = verify(program, arg_bytes)
    if findings:
        raise findings[0].invalid_program(len(findings) - 1)


def _problems(program: Program, lengths: list[int]) -> Iterator[tuple[int, Problem]]:
    instructions = program.instructions
    hazards = HazardTracker(program.config, instructions)
    semaphores = _Semaphores(program.config.semaphore_max)
    for pc, instruction in enumerate(instructions):
        own = instruction_problems(instruction, program.config, lengths)
        yield from ((pc, problem) for problem in own)
        if any(problem.fault is Fault.BAD_FIELD for problem in own):
            continue  # its fields mean nothing, so neither do its semaphores or rows
        unordered = list(hazards.step(pc, instruction, not own))
        yield from ((pc, problem) for problem in semaphores.step(instruction, hazards.order))
        yield from ((pc, problem) for problem in unordered)
        if isinstance(instruction, Halt) and pc + 1 < len(instructions):
            yield pc, Problem(Fault.NO_HALT, "HALT is not the last instruction")
    if not instructions or not isinstance(instructions[-1], Halt):
        yield len(instructions), Problem(Fault.NO_HALT, "the program does not end in HALT")


class _Use:
    """What the stream did with one semaphore so far."""

    def __init__(self) -> None:
        self.producer: Engine | None = None
        self.consumer: Engine | None = None
        self.posts = 0
        self.waits: list[int] = []  # numbers of the waiting instructions on the consumer, ascending
        self.overflowed = False


class _Semaphores:
    """One producer, one consumer, every wait after its post, and a bounded count."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._uses: dict[int, _Use] = {}

    def step(self, instruction: Instruction, order: Order) -> Iterator[Problem]:
        """Account for one instruction that `order` has just counted as done."""
        engine = engine_of(instruction)
        if engine is None:
            return
        for number in instruction.waits:
            yield from self._wait(number, engine, order)
        for number in instruction.posts:
            yield from self._post(number, engine, order)

    def _wait(self, number: int, engine: Engine, order: Order) -> Iterator[Problem]:
        use = self._uses.setdefault(number, _Use())
        use.consumer = engine if use.consumer is None else use.consumer
        if use.consumer is not engine:
            yield _second_user(number, "awaited", use.consumer, engine)
        use.waits.append(order.issued(engine))
        if len(use.waits) > use.posts:
            what = f"wait {len(use.waits)} on semaphore {number} follows {use.posts} posts"
            yield Problem(Fault.SEM_UNDERFLOW, what, (0, len(use.waits)), use.posts)

    def _post(self, number: int, engine: Engine, order: Order) -> Iterator[Problem]:
        use = self._uses.setdefault(number, _Use())
        use.producer = engine if use.producer is None else use.producer
        if use.producer is not engine:
            yield _second_user(number, "posted", use.producer, engine)
        use.posts += 1
        taken = 0
        if use.consumer is not None:
            taken = bisect.bisect_right(use.waits, order.known(engine, use.consumer))
        count = use.posts - taken
        if count > self._limit and not use.overflowed:
            use.overflowed = True
            what = f"semaphore {number} may count {count}, its limit is {self._limit}"
            yield Problem(Fault.SEM_OVERFLOW, what, (0, count), self._limit)


def _second_user(number: int, deed: str, first: Engine, second: Engine) -> Problem:
    what = f"semaphore {number} is {deed} by {second.name} and by {first.name}"
    return Problem(Fault.SEM_MULTI, what)
