"""The placement report: what runs where, and why.

Owns: its content, as data and as text. Does not own: deciding or measuring.

Invariant: every node is in it once, with a reason; a time that was not measured is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from farm.graph.claims import CPU
from farm.graph.partition import Partition
from farm.graph.run import Measured


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where one node runs.

    Attributes
    ----------
    backend
        Its name; ``cpu`` for the CPU.
    reason
        Which pattern took it, or why no backend did.
    """

    node: str
    operator: str
    backend: str
    region: str
    reason: str


@dataclass(frozen=True, slots=True)
class RegionPlace:
    """One region.

    Attributes
    ----------
    target
        What its code is for; of a measured one whose code ran.
    bytes_in, bytes_out
        Of one call, constants not counted.
    predicted_s
        By the backend, or for CPUs by a rough count; None: not predicted.
    measured_s
        Median of one call, alone; None: not measured.
    """

    region: str
    backend: str
    target: str
    nodes: int
    bytes_in: int
    bytes_out: int
    predicted_s: float | None
    measured_s: float | None
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """What runs where, and why; what backends did wrong."""

    graph: str
    nodes: tuple[NodePlace, ...]
    regions: tuple[RegionPlace, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return one JSON object."""
        return {
            "graph": self.graph,
            "nodes": [asdict(node) for node in self.nodes],
            "regions": [
                {**asdict(region), "options": dict(region.options)} for region in self.regions
            ],
            "problems": list(self.problems),
        }

    def to_text(self) -> str:
        """Return the report for people."""
        lines = [f"graph {self.graph}", ""]
        lines += _table(
            ("REGION", "RUNS ON", "NODES", "IN", "OUT", "PREDICTED", "MEASURED"),
            (
                (
                    region.region,
                    region.target
                    if region.backend == CPU
                    else f"{region.backend}: {region.target}",
                    str(region.nodes),
                    f"{region.bytes_in} B",
                    f"{region.bytes_out} B",
                    _time(region.predicted_s),
                    _time(region.measured_s),
                )
                for region in self.regions
            ),
        )
        lines.append("")
        lines += _table(
            ("NODE", "OPERATOR", "REGION", "WHY"),
            ((node.node, node.operator, node.region, node.reason) for node in self.nodes),
        )
        if self.problems:
            lines += ["", "problems of backends", *(f"  {problem}" for problem in self.problems)]
        return "\n".join(lines)


def placement(
    partition: Partition, measured: Mapping[str, Measured] | None = None
) -> PlacementReport:
    """Return the report of a partition.

    Parameters
    ----------
    measured
        What `GraphModule.measure` gave.
    """
    times = measured or {}
    nodes: list[NodePlace] = []
    regions: list[RegionPlace] = []
    for placed in partition.regions:
        region, code = placed.region, placed.code
        ran = times.get(region.name)
        planned = "any CPU" if code is None or code.target is None else code.target
        regions.append(
            RegionPlace(
                region.name,
                region.backend,
                planned if ran is None else ran.target,
                len(region.nodes),
                region.bytes_in,
                region.bytes_out,
                placed.predicted_s,
                None if ran is None else ran.median_s,
                dict(placed.options),
            )
        )
        nodes += [
            NodePlace(
                node.name, node.operator, region.backend, region.name, partition.reasons[node.name]
            )
            for node in region.nodes
        ]
    places = partition.graph.places
    nodes.sort(key=lambda place: places[place.node])
    return PlacementReport(partition.graph.name, tuple(nodes), tuple(regions), partition.problems)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f} us"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
