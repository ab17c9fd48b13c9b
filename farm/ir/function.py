"""Functions: the unit of compilation.

Owns: parameters, their roles, placement. Does not own: whether a function is right (`farm.ir.verifier`).

Invariant: a function is a value: it never changes, and equality leaves source positions out.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from farm.ir.buffer import Buffer, check_name
from farm.ir.stmt import Call, Span, Stmt, walk
from farm.target import Target, as_target


class Role(enum.Enum):
    """What a parameter is for."""

    INPUT = "input"  # only read
    OUTPUT = "output"  # every element is written before it is read
    INOUT = "inout"  # read and written


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer that the caller passes."""

    buffer: Buffer
    role: Role


@dataclass(frozen=True, slots=True)
class FastMath:
    """What code generators may do to floats beyond the IR's exact meaning; nothing unless asked for.

    Attributes
    ----------
    contract
        ``a * b + c`` may be rounded once (a fused multiply-add).
    reassociate
        A float reduction may be summed in another order, as vectorised partial sums.
    """

    contract: bool = False
    reassociate: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A named, typed loop nest.

    Attributes
    ----------
    target
        Canonical text of the target that the author placed it on; None leaves it open.
    private
        A helper that only functions of the same target may call.
    fast_math
        Freedom with floats. The interpreter takes none, so that results are compared within a tolerance.
    """

    name: str
    params: tuple[Param, ...]
    body: Stmt
    target: str | None = None
    private: bool = False
    span: Span | None = field(default=None, compare=False)
    fast_math: FastMath = FastMath()

    def __post_init__(self) -> None:
        check_name("function", self.name)

    def __str__(self) -> str:
        """Return the printed form."""
        from farm.ir.printer import print_function  # the printer needs this module

        return print_function(self)

    @property
    def callees(self) -> tuple[str, ...]:
        """Names of the functions that this one calls, sorted, without repeats."""
        return tuple(sorted({stmt.callee for stmt in walk(self.body) if isinstance(stmt, Call)}))

    def on(self, target: str | Target) -> Function:
        """Return this function placed on a target."""
        return replace(self, target=str(as_target(target)))
