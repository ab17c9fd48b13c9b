"""What something that waits demands of a device.

Owns: the labels that it must have, and the ways to run what is wanted, of which it must have one.
Does not own: reading an artifact (`farm_tracker.variants`), which devices match (`queue`).

Invariant: equal demands have equal texts and different ones different texts, so that the queue keeps one line for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from farm.artifact.choice import missing
from farm.errors import InvalidTarget
from farm.target import Selector, Target

if TYPE_CHECKING:
    from farm_tracker.state.model import Description, Device

MAX_DEMANDS = 4096


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run something: on a device that runs targets of the family and provides all that is required."""

    target: str
    family: str
    requires: tuple[str, ...]

    def lacks(self, device: Description) -> tuple[str, ...]:
        """Return what a device of the right family lacks; the family itself if it runs none of it."""
        if self.family not in families_of(device.targets):
            return (self.family,)
        return missing(self.requires, device.provides)


@dataclass(frozen=True, slots=True)
class Demand:
    """Labels, and any of some variants; no variants: whatever the device runs. Make it with `demand_of`."""

    selector: Selector
    variants: tuple[Variant, ...] = ()
    text: str = field(default="", compare=False)
    """What it is filed under."""

    def matches(self, device: Device) -> bool:
        """Tell whether a device could serve it, were it free."""
        return self.selector.matches(device.labels) and self.can_run(device.description)

    def can_run(self, device: Description) -> bool:
        """Tell whether a device runs one of the variants."""
        return not self.variants or any(not it.lacks(device) for it in self.variants)


@lru_cache(MAX_DEMANDS)
def demand_of(selector: Selector, variants: tuple[Variant, ...] = ()) -> Demand:
    """Return the demand; one value for equal ones, since thousands of jobs have few."""
    ways = [f"{it.family}:{','.join(it.requires)}" for it in variants]
    return Demand(selector, variants, "\n".join((str(selector), *ways)))


@lru_cache(MAX_DEMANDS)
def families_of(targets: tuple[str, ...]) -> frozenset[str]:
    """Return the families of targets; a text that is no target known here has none."""
    found = set()
    for text in targets:
        try:
            found.add(Target.parse(text, foreign=True).family)
        except InvalidTarget:
            continue
    return frozenset(found)
