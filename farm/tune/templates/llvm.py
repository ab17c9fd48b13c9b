"""Schedules for CPUs: for each block a recipe and its knobs, and whether loops are parallel.

Owns: the space over recipes of `farm.ops.schedules`. Does not own: any recipe.

Invariant: knobs of a recipe that is not chosen have their default, so that each schedule stands for one configuration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.errors import ScheduleError
from farm.ir import Function
from farm.ops.schedules.choose import Stage, parallel, stages, tried
from farm.ops.schedules.knobs import Recipe
from farm.schedule import Schedule
from farm.target import Target
from farm.tune.expression import Value
from farm.tune.space import Configuration
from farm.tune.templates.template import Template, refused, space_of

PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class _Decision:
    """A stage with the recipes that the function takes."""

    stage: Stage
    recipes: tuple[Recipe, ...]
    optional: bool

    @property
    def key(self) -> str:
        """What the names of its parameters begin with."""
        return self.stage.block or self.stage.recipes[0].name

    def parameter(self, recipe: Recipe, knob: str) -> str:
        """Return the name of a knob's parameter."""
        middle = f"_{recipe.name}" if len(self.recipes) > 1 else ""
        return f"{self.key}{middle}_{knob}"


class LlvmTemplate(Template):
    """Recipes and knobs of every block."""

    name = "llvm 1"

    def __init__(self, function: Function, target: Target, threads: int = 1) -> None:
        self.function, self.target, self.threads = function, target, threads
        self._decisions = list(_decide(function, target))
        values: dict[str, tuple[Value, ...]] = {}
        constraints: list[str] = []
        self.default = {}
        for decision in self._decisions:
            self._add(decision, values, constraints)
        if threads > 1 and str(parallel(Schedule(function), threads).trace):
            values[PARALLEL] = (0, 1)
            self.default[PARALLEL] = 1
        self.space = space_of(function, values, constraints)

    def _add(
        self, decision: _Decision, values: dict[str, tuple[Value, ...]], constraints: list[str]
    ) -> None:
        names = tuple(recipe.name for recipe in decision.recipes)
        choosing = f"{decision.key}_recipe"
        if len(names) > 1:
            values[choosing], self.default[choosing] = names, names[0]
        elif decision.optional:
            values[decision.key], self.default[decision.key] = (0, 1), 1
        for recipe in decision.recipes:
            own = {knob: decision.parameter(recipe, knob) for knob in recipe.knobs.values}
            for knob, name in own.items():
                values[name] = recipe.knobs.values[knob]
                self.default[name] = recipe.knobs.default[knob]
            chosen = f"{choosing} != {recipe.name!r} or " if len(names) > 1 else ""
            for constraint in recipe.knobs.constraints:
                constraints.append(f"{chosen}({_renamed(constraint, own)})")
            if len(names) > 1:
                constraints += [
                    f"{choosing} == {recipe.name!r} or {name} == {self.default[name]}"
                    for name in own.values()
                    if len(values[name]) > 1
                ]

    def schedule(self, configuration: Configuration) -> Schedule:
        """Return the schedule of a configuration; raises ScheduleError if a step refuses it."""
        sch = Schedule(self.function)
        for decision in self._decisions:
            recipe = self._chosen(decision, configuration)
            if recipe is None:
                continue
            choice = {
                knob: int(configuration[decision.parameter(recipe, knob)])
                for knob in recipe.knobs.values
            }
            try:
                recipe.apply(sch, choice)
            except ScheduleError as error:
                raise refused(self.function, error.message, configuration) from error
        return parallel(sch, self.threads) if configuration.get(PARALLEL) else sch

    def _chosen(self, decision: _Decision, configuration: Configuration) -> Recipe | None:
        if len(decision.recipes) == 1:
            optional = decision.optional and not configuration[decision.key]
            return None if optional else decision.recipes[0]
        name = configuration[f"{decision.key}_recipe"]
        return next(recipe for recipe in decision.recipes if recipe.name == name)


def _decide(function: Function, target: Target) -> list[_Decision]:
    """Return for each stage the recipes that are not refused, after the best one of each stage before."""
    sch = Schedule(function)
    found: list[_Decision] = []
    for stage in stages(sch, target):
        made = [(recipe, tried(sch, recipe, recipe.knobs.default)) for recipe in stage.recipes]
        taken = [(recipe, schedule) for recipe, schedule in made if schedule is not None]
        if taken:
            found.append(_Decision(stage, tuple(recipe for recipe, _ in taken), not stage.block))
            sch = taken[0][1]
    return found


def _renamed(constraint: str, names: dict[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), constraint)
