"""Building: one request for functions of several targets becomes one artifact.

Owns: the rules of a request (placement, names, references, host), the plan that every builder follows, and the build
on this machine. Does not own: compiling one function (`farm.codegen`), the file (`farm.artifact`) or the farm's
queue (the tracker).

Invariant: the same request gives the same plan, whatever the order of its parts, and the same plan gives the same bytes
here and on any farm.
"""

from farm.building.combine import combine
from farm.building.local import build
from farm.building.plan import BuildItem, BuildPlan, Request, Tuned, plan
from farm.building.report import ItemOutcome, ItemState, Progress, failure

__all__ = [
    "BuildItem",
    "BuildPlan",
    "ItemOutcome",
    "ItemState",
    "Progress",
    "Request",
    "Tuned",
    "build",
    "combine",
    "failure",
    "plan",
]
