"""The examples in the documentation of schedules: each primitive, before and after."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest
from unit.schedule.examples import names

from farm.schedule import Schedule

MODULES = [
    "farm.schedule.schedule",
    "farm.schedule.trace",
    *(f"farm.schedule.methods.{name}" for name in ("loops", "memory", "moves", "queries")),
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_show(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module), extraglobs=names())
    assert found.attempted > 0
    assert found.failed == 0


def test_every_method_that_rewrites_has_an_example() -> None:
    without = [
        name
        for name, method in inspect.getmembers(Schedule, inspect.isfunction)
        if not name.startswith("_") and ">>>" not in (method.__doc__ or "")
    ]
    assert without == [
        "block",
        "block_names",
        "copy",
        "extent_of",
        "fast_math",
        "get_block",
        "get_consumers",
        "get_producers",
        "shape_of",
        "take",
        "unannotate",
    ]
