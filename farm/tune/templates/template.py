"""A function with choices: the space of its schedules on one target.

Owns: what every template offers, and finding the one for a target. Does not own: its choices (`llvm`,
`ea`, `accelerator`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from farm.errors import InvalidInput, ScheduleError
from farm.ir import Function, parse, serialise
from farm.schedule import Schedule
from farm.target import Target, as_target
from farm.tune.expression import Value
from farm.tune.space import Configuration, Space


class Template(ABC):
    """All schedules of a function that a search may try on a target.

    Attributes
    ----------
    name
        Of the kind of template, with a version that is raised when a configuration means something else.
    function
        In canonical form; schedules are of this one.
    space
        Every configuration is valid.
    default
        The configuration that is good without tuning.
    """

    name: str
    function: Function
    target: Target
    space: Space
    default: dict[str, Value]

    @abstractmethod
    def schedule(self, configuration: Configuration) -> Schedule:
        """Return the schedule of a configuration.

        Raises
        ------
        ScheduleError
            It does not fit the function after all.
        """


def template_for(function: Function, target: str | Target, *, threads: int = 1) -> Template:
    """Return the template of a function on a target.

    Parameters
    ----------
    threads
        How many a device has; more than one adds the choice of parallel loops.

    Raises
    ------
    InvalidInput
        There is nothing to choose: no template for this kind of target, or none of this function's loops.
    UnsupportedFunction
        An accelerator that cannot run it.
    """
    from farm.tune.templates.accelerator import AcceleratorTemplate
    from farm.tune.templates.ea import EaTemplate
    from farm.tune.templates.llvm import LlvmTemplate

    where = as_target(target)
    plain = parse(serialise(function))
    if where.family.startswith("llvm/"):
        return LlvmTemplate(plain, where, threads)
    if where.kind == "ea":
        return EaTemplate(plain, where)
    if where.is_plug_in:
        return AcceleratorTemplate(plain, where)
    raise InvalidInput(
        f"tune {function.name}: nothing can be chosen for {where}; tune for llvm, ea, or an installed accelerator"
    )


def space_of(
    function: Function,
    values: Mapping[str, tuple[Value, ...]],
    constraints: list[str],
) -> Space:
    """Return a space; raises InvalidInput if it has one configuration only."""
    space = Space(values, constraints) if values else None
    if space is None or space.size == 1:
        raise InvalidInput(
            f"tune {function.name}: its loops leave nothing to choose; use larger extents, or build it as it is"
        )
    return space


def refused(function: Function, stage: str, configuration: Configuration) -> ScheduleError:
    """Return the error of a configuration that a schedule refuses though the space has it."""
    shown = ", ".join(f"{name}={value}" for name, value in configuration.items())
    return ScheduleError(f"schedule of {function.name}: {stage} refuses {shown}; try another")
