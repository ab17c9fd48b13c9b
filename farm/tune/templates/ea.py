"""Schedules for the emulated accelerator: sizes and order of its tiles, as hints to its code generator."""

from __future__ import annotations

from farm.codegen.ea.knobs import hint_knobs
from farm.codegen.ea.lift import HINT
from farm.ir import Function
from farm.schedule import Schedule
from farm.target import Target
from farm.tune.space import Configuration
from farm.tune.templates.template import Template, space_of


class EaTemplate(Template):
    """Tiles, their order and buffers."""

    name = "ea 2"

    def __init__(self, function: Function, target: Target) -> None:
        knobs = hint_knobs(function, target)
        self.function, self.target = function, target
        self.space = space_of(function, dict(knobs.values), list(knobs.constraints))
        self.default = dict(knobs.default)

    def schedule(self, configuration: Configuration) -> Schedule:
        """Return the function with the hints of a configuration on its first loop."""
        sch = Schedule(self.function)
        loop = sch.get_loops(sch.block_names()[-1])[0]
        for name, value in configuration.items():
            sch.annotate(loop, f"{HINT}{name}", int(value))
        return sch
