"""From a graph to one artifact.

Owns: sending what fails to build back to the CPU. Does not own: the partition, the plan, or compiling.

Invariant: what is returned runs on every CPU that was asked for, accelerators or not; with `strict` nothing is moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from farm.artifact import Artifact
from farm.building import Request, Tuned, build
from farm.errors import BuildFailed, error_class
from farm.graph.backend import Backend, Options
from farm.graph.graph import Graph
from farm.graph.guard import DEFAULT_LIMIT_S
from farm.graph.partition import Partition, Placed, partition
from farm.graph.plan import Plan, make_plan
from farm.target import Target

MAX_REASON = 500


class Builds(Protocol):
    """`farm.build`, or a client's `build`."""

    def __call__(
        self,
        request: Request,
        target_host: str | Target | None = None,
        *,
        variants: bool = False,
        keep_going: bool = False,
    ) -> Artifact:
        """Build a request."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class GraphBuild:
    """A graph, built: one artifact and how to run it."""

    graph: Graph
    plan: Plan
    artifact: Artifact

    @property
    def partition(self) -> Partition:
        """Who runs what."""
        return self.plan.partition


def build_graph(
    graph: Graph,
    backends: Sequence[Backend] = (),
    *,
    cpus: Sequence[str | Target] = ("llvm",),
    builder: Builds = build,
    target_host: str | Target | None = None,
    tuned: Tuned | None = None,
    options: Mapping[str, Options] | None = None,
    strict: bool = False,
    only_faster: bool = False,
    limit_s: float = DEFAULT_LIMIT_S,
) -> GraphBuild:
    """Partition a graph and build all of it into one artifact.

    Parameters
    ----------
    cpus
        Targets on which everything can run.
    builder
        `farm.build`, or the `build` of a client: then the farm compiles.
    target_host
        What calls accelerators; None: as in `farm.build`.
    tuned
        Whose schedules are taken for regions' functions where it knows one, such as `farm.tune.Records`; else the
        default ones are.
    options, strict, only_faster, limit_s
        As in `farm.graph.partition.partition`. With `strict` a region that does not build is an error, too.

    Raises
    ------
    FarmError
        As `partition` and `builder`.
    """
    refused: dict[str, str] = {}
    while True:
        parts = partition(
            graph,
            backends,
            options=options,
            strict=strict,
            only_faster=only_faster,
            limit_s=limit_s,
            refused=refused,
        )
        plan = make_plan(parts)
        try:
            artifact = builder(
                plan.request(cpus, tuned), target_host, variants=True, keep_going=True
            )
        except BuildFailed as error:
            failed = _failed(parts, error)
            if strict or not failed:
                raise
            refused |= failed
        else:
            return GraphBuild(graph, plan, artifact)


def _failed(parts: Partition, error: BuildFailed) -> dict[str, str]:
    """Return the regions of backends that do not build, each with the reason.

    What failed for want of a builder, or of its disk, may build next time: to move it would make the partition a
    matter of luck.
    """
    found: dict[str, str] = {}
    keys = [key for key, code in error.details.items() if not error_class(code).retryable]
    for placed in parts.regions:
        if placed.code is not None and any(_names(placed, key) for key in keys):
            name = placed.region.name
            lines = [line.strip() for line in error.message.splitlines() if name in line]
            why = " ".join(lines) or "its build failed"
            found[name] = f"{placed.region.backend}: does not build: {why[:MAX_REASON]}"
    return found


def _names(placed: Placed, key: str) -> bool:
    """Tell whether ``TARGET/FUNCTION`` is a region's."""
    return key.rpartition("/")[2] == placed.region.name
