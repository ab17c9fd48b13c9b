"""Who runs which part of a graph.

Owns: regions, in an order in which they can run, and the reason for every node's place. Does not own: matching
(`farm.graph.claims`), grouping (`farm.graph.waves`), building (`farm.graph.build`).

Invariant: every node is in exactly one region; regions read only from regions before them; whatever a backend does, the
partition is complete, with the CPU for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from farm.artifact.abi import ALLOWED_IMPORTS
from farm.errors import FarmError, InvalidInput, UnsupportedFunction
from farm.graph.backend import Backend, Option, Options, Region, complete_options
from farm.graph.claims import CPU, MAX_REASON, Asked, Claims, ask, claim
from farm.graph.code import Code, checked
from farm.graph.cost import cpu_seconds
from farm.graph.graph import Graph, Node, extract
from farm.graph.guard import DEFAULT_LIMIT_S, BackendMisbehavedError
from farm.graph.match import Match
from farm.graph.waves import connected, in_order, waves

MAX_CPU_NODES = 16
"""Nodes of one CPU function: more would only make it slow to schedule."""
MAX_VALUES = 56
"""Values that one function takes and gives: the IR takes 64 parameters."""
MAX_SECONDS = 1e9
"""Of one call; more is no prediction."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """One region, and what it became.

    Attributes
    ----------
    code
        None for CPU regions, which `farm.graph.lower` makes.
    predicted_s
        What the backend says that one call takes; for CPU regions a rough count; None: it does not say.
    options
        What the code generator was given.
    """

    region: Region
    code: Code | None
    predicted_s: float | None
    options: Mapping[str, Option] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A graph cut into regions.

    Attributes
    ----------
    regions
        In an order in which they can run.
    reasons
        By a node's name: why it is where it is.
    problems
        What backends did wrong, each with its backend's name.
    """

    graph: Graph
    regions: tuple[Placed, ...]
    reasons: Mapping[str, str]
    problems: tuple[str, ...]

    def region_of(self, node: str) -> Placed:
        """Return the region that a node, by its name, is in."""
        return next(p for p in self.regions if any(n.name == node for n in p.region.nodes))


def partition(
    graph: Graph,
    backends: Sequence[Backend] = (),
    *,
    options: Mapping[str, Options] | None = None,
    strict: bool = False,
    only_faster: bool = False,
    limit_s: float = DEFAULT_LIMIT_S,
    refused: Mapping[str, str] | None = None,
) -> Partition:
    """Cut a graph into regions.

    Parameters
    ----------
    backends
        In the order of preference among patterns of equal priority.
    options
        For each backend, by name, values for some of its knobs.
    strict
        Refuse to go on where a region that a backend claimed does not compile.
    only_faster
        Drop regions that their backend predicts to be no faster than the CPU's rough count.
    limit_s
        Of each call of a backend.
    refused
        Regions, by name, that must stay on the CPU, each with the reason: what failed to build earlier.

    Raises
    ------
    UnsupportedFunction
        With `strict`: a region does not compile.
    InvalidInput
        `options` names what its backend does not have.
    """
    work = _Work(graph, Claims(), strict, only_faster, dict(refused or {}))
    asked = ask(backends, limit_s, work.claims)
    chosen = _options(asked, options or {})
    claim(graph, asked, work.claims)
    for _, match in work.claims.taken:
        work.merge(match.nodes, match)
    for place, each in enumerate(asked):
        matches = {m.nodes[-1].name for owner, m in work.claims.taken if owner == place}
        for group in work.groups(matches, joins=each.joins):
            work.compile(each, group, chosen.get(each.name, {}))
    work.place_rest()
    return work.result()


def _options(asked: Sequence[Asked], given: Mapping[str, Options]) -> dict[str, dict[str, Option]]:
    found = {each.name: each for each in asked}
    for name in given:
        if name not in found:
            known = ", ".join(found) or "none"
            raise InvalidInput(f"options of backend {name!r}: no such backend; there is {known}")
    return {
        name: complete_options(name, each.knobs, given.get(name, {}))
        for name, each in found.items()
    }


@dataclass(slots=True, eq=False)
class _Unit:
    """What stays together: a node, a match or a region."""

    nodes: tuple[Node, ...]
    match: Match | None = None
    placed: Placed | None = None

    @property
    def key(self) -> str:
        """The last node's name: units share no node."""
        return self.nodes[-1].name


class _Work:
    """A partition being made: units, and the edges between them."""

    def __init__(
        self,
        graph: Graph,
        claims: Claims,
        strict: bool,
        only_faster: bool,
        refused: Mapping[str, str],
    ) -> None:
        self.graph = graph
        self.claims = claims
        self.strict = strict
        self.only_faster = only_faster
        self.refused = refused
        self.unit_of = {node.name: _Unit((node,)) for node in graph.nodes}
        self.reasons: dict[str, str] = {}

    def merge(self, nodes: Iterable[Node], match: Match | None) -> _Unit:
        """Make one unit of some nodes."""
        ordered = sorted(nodes, key=lambda node: self.graph.places[node.name])
        unit = _Unit(tuple(ordered), match)
        self.unit_of.update((node.name, unit) for node in ordered)
        return unit

    def units(self) -> list[_Unit]:
        """Return all units in the order of their first nodes."""
        return list(dict.fromkeys(self.unit_of[node.name] for node in self.graph.nodes))

    def edges(self, units: Sequence[_Unit]) -> list[list[int]]:
        """Return for each unit those that read from it, each once."""
        number = {id(unit): place for place, unit in enumerate(units)}
        found: list[list[int]] = []
        for unit in units:
            readers = (
                self.unit_of[reader.name]
                for node in unit.nodes
                for reader in self.graph.readers.get(node.output, ())
            )
            found.append(list(dict.fromkeys(number[id(r)] for r in readers if r is not unit)))
        return found

    def groups(self, keys: set[str], *, joins: bool) -> list[list[_Unit]]:
        """Return groups of the units whose last nodes are named; each unit alone unless they join."""
        units = self.units()
        chosen = [unit.key in keys and unit.placed is None for unit in units]
        if not joins:
            return [[unit] for unit, own in zip(units, chosen, strict=True) if own]
        edges = self.edges(units)
        parts = [part for group in waves(edges, chosen) for part in connected(group, edges)]
        return [[units[place] for place in part] for part in parts]

    def compile(self, asked: Asked, group: Sequence[_Unit], options: Mapping[str, Option]) -> None:
        """Make a region of a group and compile it; what fails goes back."""
        nodes = [node for unit in group for node in unit.nodes]
        region = self._region(nodes, asked.name, tuple(u.match for u in group if u.match))
        reason, placed = self._compiled(asked, region, options)
        if placed is None:
            if self.strict and region.name not in self.refused:
                raise UnsupportedFunction(
                    f"graph {self.graph.name}: region {region.name} of {_names(nodes)}: {reason}; "
                    f"drop strict to run it on the CPU"
                )
            self.claims.refuse(nodes, reason)
            for node in nodes:
                self.unit_of[node.name] = _Unit((node,))
            return
        self.merge(nodes, None).placed = placed
        for unit in group:
            assert unit.match is not None
            for node in unit.nodes:
                self.reasons[node.name] = f"matches {unit.match.pattern.name}"

    def _compiled(
        self, asked: Asked, region: Region, options: Mapping[str, Option]
    ) -> tuple[str, Placed | None]:
        if region.name in self.refused:
            return self.refused[region.name], None
        values = len(region.graph.inputs) + len(region.graph.constants) + len(region.graph.outputs)
        if values > MAX_VALUES:
            return f"{asked.name}: the region takes {values} values, more than {MAX_VALUES}", None
        try:
            predicted = self._predicted(asked, region, options)
            cpu = cpu_seconds(self.graph, region.nodes)
            if self.only_faster and predicted is not None and predicted >= cpu:
                why = f"predicted {predicted * 1e6:.3g} us, the CPU about {cpu * 1e6:.3g} us"
                return f"{asked.name}: no faster ({why})", None
            backend = asked.backend
            code = asked.guard.call(
                "compile", lambda: checked(region, backend.compile(region, options))
            )
        except BackendMisbehavedError as error:
            cause = error.__cause__
            if isinstance(cause, FarmError):
                return f"{asked.name}: does not compile: {cause.message[:MAX_REASON]}", None
            self.claims.complain(str(error))
            return str(error), None
        return "", Placed(region, code, predicted, dict(options))

    def _predicted(
        self, asked: Asked, region: Region, options: Mapping[str, Option]
    ) -> float | None:
        try:
            predict = asked.guard.call("predict", getattr, asked.backend, "predict", None)
            if predict is None:
                return None
            seconds: object = asked.guard.call("predict", predict, region, options)
        except BackendMisbehavedError as error:
            if not isinstance(error.__cause__, FarmError):  # that says that it does not know
                self.claims.complain(str(error))
            return None
        number = type(seconds) in (int, float)  # no class of theirs, which may do anything
        if isinstance(seconds, int | float) and number and 0 <= seconds <= MAX_SECONDS:
            return float(seconds)
        shown = f"{seconds:.3e}" if isinstance(seconds, float) else type(seconds).__name__
        self.claims.complain(
            f"backend {asked.name}: its predict gave nonsense ({shown}); give seconds"
        )
        return None

    def _region(
        self, nodes: Sequence[Node], backend: str, matches: tuple[Match, ...] = ()
    ) -> Region:
        ordered = sorted(nodes, key=lambda node: self.graph.places[node.name])
        inside = {node.name for node in ordered}
        outputs = [
            node.output
            for node in ordered
            if node.output in self.graph.outputs
            or any(r.name not in inside for r in self.graph.readers.get(node.output, ()))
        ]
        name = f"{stem_of(self.graph)}_{backend}_{self.graph.places[ordered[0].name]}"
        return Region(name, backend, matches, extract(self.graph, name, ordered, outputs))

    def place_rest(self) -> None:
        """Put what is left on the CPU, in functions of a moderate size."""
        left = {unit.key for unit in self.units() if unit.placed is None}
        for group in self.groups(left, joins=True):
            nodes = [node for unit in group for node in unit.nodes]
            for part in self._parts(sorted(nodes, key=lambda n: self.graph.places[n.name])):
                region = self._region(part, CPU)
                seconds = cpu_seconds(self.graph, part)
                self.merge(part, None).placed = Placed(region, None, seconds)
        for node in self.graph.nodes:
            if node.name not in self.reasons:
                why = self.claims.reasons.get(node.name)
                self.reasons[node.name] = (
                    "; ".join(why) if why else "no backend has a pattern for it"
                )

    def _parts(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """Cut a group, in order, where it gets too large for one function."""
        parts: list[list[Node]] = [[]]
        values: set[str] = set()
        for node in nodes:
            grown = values | {*node.inputs, node.output}
            if parts[-1] and (len(parts[-1]) == MAX_CPU_NODES or len(grown) > MAX_VALUES):
                parts.append([])
                grown = {*node.inputs, node.output}
            parts[-1].append(node)
            values = grown
        return parts

    def result(self) -> Partition:
        """Return the regions in an order in which they can run."""
        units = self.units()
        order = in_order(self.edges(units))
        assert len(order) == len(units)  # waves make no circle
        regions = tuple(units[place].placed for place in order)
        return Partition(
            self.graph,
            tuple(placed for placed in regions if placed is not None),
            {node.name: self.reasons[node.name] for node in self.graph.nodes},
            tuple(self.claims.problems),
        )


def stem_of(graph: Graph) -> str:
    """Return a graph's name as a C identifier: what its functions' names begin with."""
    stem = re.sub(r"\W", "_", graph.name, flags=re.ASCII).lstrip("_")[:80] or "graph"
    return f"g{stem}" if stem[0].isdigit() or stem in ALLOWED_IMPORTS else stem


def _names(nodes: Sequence[Node]) -> str:
    shown = ", ".join(str(node) for node in nodes[:4])
    return shown if len(nodes) <= 4 else f"{shown} and {len(nodes) - 4} more"
