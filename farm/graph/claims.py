"""Which nodes each backend wants: matches by priority, and why others were refused.

Owns: asking backends, and who gets a node that several want. Does not own: regions (`farm.graph.partition`).

Invariant: no node is claimed twice; every refusal is kept with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from farm.errors import FarmError
from farm.graph.backend import Backend, Knobs
from farm.graph.graph import Graph, Node
from farm.graph.guard import BackendMisbehavedError, Guard
from farm.graph.match import Match, match_at
from farm.graph.pattern import Either, Op, Pattern, PatternNode, Wildcard

CPU = "cpu"
"""What runs the rest; no backend may be called so."""
MAX_REASON = 500
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
NO_REASON = "refused without a reason"


@dataclass(slots=True)
class Asked:
    """One backend, and what it said of itself.

    Attributes
    ----------
    roots
        For each pattern the operators that a match of it may end with.
    """

    backend: Backend
    guard: Guard
    name: str
    patterns: tuple[Pattern, ...] = ()
    roots: tuple[frozenset[str], ...] = ()
    joins: bool = False
    knobs: Knobs = field(default_factory=dict)


@dataclass(slots=True)
class Claims:
    """What was claimed.

    Attributes
    ----------
    taken
        Matches with the place of their backend, in the order in which they were claimed.
    reasons
        By a node's name: why backends did not take it.
    problems
        What backends did wrong.
    """

    taken: list[tuple[int, Match]] = field(default_factory=list)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def refuse(self, nodes: Sequence[Node], reason: str) -> None:
        """Note why nodes were not taken, each reason once."""
        line = _one_line(reason)
        for node in nodes:
            known = self.reasons.setdefault(node.name, [])
            if line not in known:
                known.append(line)

    def complain(self, problem: str) -> None:
        """Note what a backend did wrong, each once."""
        line = _one_line(problem)
        if line not in self.problems:
            self.problems.append(line)


def _one_line(text: str) -> str:
    """Return what a backend said as one line that shows in a table."""
    words = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def ask(backends: Sequence[Backend], limit_s: float, claims: Claims) -> list[Asked]:
    """Ask backends for their names, patterns and knobs; one that answers nonsense has no patterns."""
    found: list[Asked] = []
    for place, backend in enumerate(backends):
        guard = Guard(f"#{place + 1} ({type(backend).__name__})", limit_s)
        asked = Asked(backend, guard, guard.name)
        try:
            name = guard.call("name", lambda b=backend: b.name)
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name == CPU:
                wanted = f"a C identifier of at most 40 letters, not {CPU}"
                raise _nonsense(asked, "name", name, wanted)
            if any(other.name == name for other in found):
                raise _nonsense(asked, "name", name, "one that no other backend has")
            asked.name = guard.name = name
            _read(asked)
        except BackendMisbehavedError as error:
            claims.complain(str(error))
        found.append(asked)
    return found


def _read(asked: Asked) -> None:
    backend = asked.backend
    patterns = asked.guard.call("patterns", lambda: tuple(backend.patterns))
    for pattern in patterns:
        sound = isinstance(pattern, Pattern) and isinstance(pattern.name, str)
        if not sound or type(pattern.priority) is not int or not callable(pattern.check):
            raise _nonsense(asked, "patterns", pattern, "Pattern objects")
    roots = asked.guard.call("patterns", lambda: tuple(_operators(it.root) for it in patterns))
    joins = asked.guard.call("joins", lambda: backend.joins)
    if not isinstance(joins, bool):
        raise _nonsense(asked, "joins", joins, "True or False")
    knobs = asked.guard.call("knobs", lambda: {k: tuple(v) for k, v in backend.knobs.items()})
    for name, values in knobs.items():
        plain = all(isinstance(value, bool | int | float | str) for value in values)
        if not isinstance(name, str) or not values or not plain:
            raise _nonsense(asked, "knobs", {name: values}, "values for each name")
    asked.patterns, asked.roots, asked.joins, asked.knobs = patterns, roots, joins, knobs


def _nonsense(asked: Asked, what: str, value: object, wanted: str) -> BackendMisbehavedError:
    shown = f"{type(value).__name__} {value!r:.80}" if isinstance(value, str) else type(value)
    return BackendMisbehavedError(
        f"backend {asked.name}: its {what} gave nonsense ({shown}); give {wanted}"
    )


def claim(graph: Graph, asked: Sequence[Asked], claims: Claims) -> None:
    """Match all patterns, the highest priority first, each from the outputs on."""
    order = sorted(
        (
            (-pattern.priority, place, number)
            for place, each in enumerate(asked)
            for number, pattern in enumerate(each.patterns)
        )
    )
    free = {node.name for node in graph.nodes}
    for _, place, number in order:
        each = asked[place]
        pattern = each.patterns[number]
        for node in reversed(graph.nodes):
            if node.name in free and node.operator in each.roots[number]:
                match = _match(graph, node, each, pattern, free, claims)
                if match is not None:
                    claims.taken.append((place, match))
                    free.difference_update(inner.name for inner in match.nodes)


def _match(
    graph: Graph, node: Node, asked: Asked, pattern: Pattern, free: set[str], claims: Claims
) -> Match | None:
    """Return a match that ends at a node and that its backend takes; note why not."""
    label = f"{asked.name}: {pattern.name}"
    what = f"pattern {pattern.name}"
    try:
        others = asked.guard.here(what, _asks, pattern.root)
        call = asked.guard.call if others else asked.guard.here
        found = call(what, match_at, pattern, graph, node)
    except BackendMisbehavedError as error:
        claims.complain(str(error))
        claims.refuse([node], str(error))
        return None
    if not isinstance(found, Match):
        if found is not None:
            claims.refuse([node], f"{label}: {found}")
        return None
    busy = next((inner for inner in found.nodes if inner.name not in free), None)
    if busy is not None:
        left = [inner for inner in found.nodes if inner.name in free]
        claims.refuse(left, f"{label}: {busy} was taken before")
        return None
    try:
        reason = asked.guard.call(f"check of pattern {pattern.name}", pattern.check, found)
        if reason is not None and not isinstance(reason, str):
            raise _nonsense(asked, f"check of pattern {pattern.name}", reason, "None or a text")
    except BackendMisbehavedError as error:
        cause = error.__cause__
        if isinstance(cause, FarmError):  # a refusal that was raised
            claims.refuse(found.nodes, f"{label}: {cause.message[:MAX_REASON]}")
        else:
            claims.complain(str(error))
            claims.refuse(found.nodes, str(error))
        return None
    if reason is None:
        return found
    claims.refuse(found.nodes, f"{label}: {reason[:MAX_REASON] or NO_REASON}")
    return None


def _asks(pattern: PatternNode) -> bool:
    """Tell whether matching a pattern calls predicates of its author's."""
    match pattern:
        case Op(_, inputs, attributes):
            return any(map(callable, attributes.values())) or any(map(_asks, inputs or ()))
        case Either(options):
            return any(map(_asks, options))
        case _:
            return False


def _operators(root: PatternNode) -> frozenset[str]:
    """Return the operators that a match may end with."""
    match root:
        case Op(operators, inputs):
            first = inputs[0] if root.optional and inputs else Wildcard()
            return frozenset(operators) | _operators(first)
        case Either(options):
            return frozenset().union(*map(_operators, options))
        case _:
            return frozenset()
