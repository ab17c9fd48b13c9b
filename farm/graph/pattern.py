"""Patterns: what an accelerator wants to take of a graph.

Owns: how patterns are written. Does not own: finding them in a graph (`farm.graph.match`).

Invariant: a pattern is a value; where the same object stands twice in it, it stands for the same node or value.

Examples
--------
>>> from farm.graph.pattern import Pattern, constant, op, optional, wildcard
>>> product = op("dense", wildcard("x"), constant("weight"), name="product")
>>> layer = Pattern("layer", optional("relu", op("add", product, constant("bias"))), priority=10)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from farm.errors import InvalidGraph
from farm.graph.operators import find_operator

if TYPE_CHECKING:
    from farm.graph.match import Match

Check = Callable[["Match"], str | None]
"""Looks at a whole match; returns None if the backend takes it, else why not."""


class PatternNode:
    """Base of what patterns are made of."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Wildcard(PatternNode):
    """Any value; what makes it is not part of the match.

    Attributes
    ----------
    name
        Wildcards of one name stand for one value; empty: none.
    constant
        Whether it has to be a constant; None: it may be.
    """

    name: str = ""
    constant: bool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Op(PatternNode):
    """A node.

    Attributes
    ----------
    operators
        Any of these.
    inputs
        A pattern for each operand; None: whatever they are.
    attributes
        For some attributes the value wanted, or a predicate that is given the value.
    optional
        Where there is no such node, the first operand's pattern may stand here itself.
    """

    operators: tuple[str, ...]
    inputs: tuple[PatternNode, ...] | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Either(PatternNode):
    """The first of several patterns that matches."""

    options: tuple[PatternNode, ...]


def wildcard(name: str = "") -> Wildcard:
    """Return a pattern of any value."""
    return Wildcard(name)


def constant(name: str = "") -> Wildcard:
    """Return a pattern of any constant."""
    return Wildcard(name, constant=True)


def op(
    operators: str,
    *inputs: PatternNode,
    name: str = "",
    **attributes: Any,
) -> Op:
    """Return a pattern of a node with these operands.

    Parameters
    ----------
    operators
        One operator, or several with ``|`` between them. A commutative one matches in either order.
    name
        What a match calls the node's value.
    attributes
        See `Op`.

    Raises
    ------
    InvalidGraph
        There is no such operator, or it has no such attribute.
    """
    return _op(operators, inputs, name, attributes, optional=False)


def optional(
    operators: str,
    first: PatternNode,
    *others: PatternNode,
    name: str = "",
    **attributes: Any,
) -> Op:
    """Return a pattern of a node that may be missing: then `first` stands in its place."""
    return _op(operators, (first, *others), name, attributes, optional=True)


def any_op(operators: str, *, name: str = "", **attributes: Any) -> Op:
    """Return a pattern of a node whatever its operands are."""
    return _op(operators, None, name, attributes, optional=False)


def either(*options: PatternNode) -> Either:
    """Return a pattern that any of some patterns satisfies; the first that does is taken."""
    if not options:
        raise InvalidGraph("pattern: either of nothing; give one option or more")
    return Either(options)


def _op(
    operators: str,
    inputs: tuple[PatternNode, ...] | None,
    name: str,
    attributes: Mapping[str, Any],
    *,
    optional: bool,
) -> Op:
    names = tuple(operators.split("|"))
    for each in names:
        schema = find_operator(each)
        for attribute in attributes:
            if attribute not in schema.attributes:
                known = ", ".join(sorted(schema.attributes)) or "none"
                raise InvalidGraph(
                    f"pattern: {each} has no attribute {attribute!r}; it has {known}"
                )
    for place, operand in enumerate(inputs or ()):
        if not isinstance(operand, PatternNode):
            raise InvalidGraph(
                f"pattern: operand {place} of {operators} is no pattern ({operand!r})"
            )
    return Op(names, inputs, MappingProxyType(dict(attributes)), name, optional)


def _takes_all(_: Match) -> str | None:
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What a backend takes, and whether it takes a match of it.

    Attributes
    ----------
    name
        Shown in reports.
    priority
        Higher ones take their nodes first, whichever backend they belong to; among equal ones, the backends' order and
        then the patterns' decides.
    check
        Is given the whole match, with its outputs and quantisation. Its yes is a promise that the backend compiles it.
    """

    name: str
    root: PatternNode
    priority: int = 0
    check: Check = _takes_all
