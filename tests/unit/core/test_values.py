"""Changed copies of frozen values."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
from farm_agents.state import model as agent_model
from farm_agents.state import run as agent_run
from farm_tracker.state import account, commands, events, model, run, work

from farm.core.values import replace

MODULES = (agent_model, agent_run, account, commands, events, model, run, work)
CLASSES = [
    cls
    for module in MODULES
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if dataclasses.is_dataclass(cls)
    and cls.__module__ == module.__name__
    and len(dataclasses.fields(cls)) > 1
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_replace_is_that_of_dataclasses_for_each_value_of_the_cores(cls):
    value = cls(**{it.name: object() for it in dataclasses.fields(cls)})
    for field in dataclasses.fields(cls):
        change = {field.name: object()}
        changed = replace(value, **change)
        assert type(changed) is cls
        assert changed == dataclasses.replace(value, **change) != value
    assert replace(value) == value
    with pytest.raises(TypeError, match="has no field 'nothing'"):
        replace(value, nothing=1)


def test_replace_refuses_what_it_would_copy_wrongly():
    @dataclasses.dataclass(frozen=True, slots=True)
    class Checked:
        low: int
        high: int

        def __post_init__(self):
            assert self.low <= self.high

    @dataclasses.dataclass(frozen=True)
    class Plain:
        low: int
        high: int

    for value in (Checked(1, 2), Plain(1, 2), 3):
        with pytest.raises(TypeError, match=r"use dataclasses\.replace"):
            replace(value, low=0)
