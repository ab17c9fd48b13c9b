"""Choices of the code generator of an accelerator that a package brings, as knobs on the function."""

from __future__ import annotations

from farm.codegen.accelerator.asking import ask_knobs
from farm.codegen.accelerator.knobs import PREFIX
from farm.ir import Function
from farm.schedule import Schedule
from farm.target import Target
from farm.tune.space import Configuration
from farm.tune.templates.template import Template, space_of


class AcceleratorTemplate(Template):
    """The knobs that the accelerator gives for the function; every combination is allowed."""

    name = "accelerator 1"

    def __init__(self, function: Function, target: Target) -> None:
        knobs = ask_knobs(function, target)
        self.function, self.target = function, target
        self.space = space_of(
            function, {name: _sorted(values) for name, values in knobs.items()}, []
        )
        self.default = {name: values[0] for name, values in knobs.items()}

    def schedule(self, configuration: Configuration) -> Schedule:
        """Return the function with the knobs of a configuration on its first loop."""
        sch = Schedule(self.function)
        loop = sch.get_loops(sch.block_names()[0])[0]
        for name, value in configuration.items():
            sch.annotate(loop, f"{PREFIX}{name}", value if isinstance(value, str) else int(value))
        return sch


def _sorted(values: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return numbers ascending, so that neighbours are alike; texts as they are."""
    numbers = [value for value in values if isinstance(value, int)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else values
