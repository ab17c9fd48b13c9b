"""Tuning: spaces of configurations, searching them, measuring candidates on a farm, and keeping what was learned.

Owns spaces, templates, strategies, searches, records and the tuner. Does not own how a candidate is built or measured
(`farm.client`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farm.tune.parameter import Parameter
from farm.tune.search import Search
from farm.tune.space import Space
from farm.tune.strategies import DEFAULT_STRATEGY, STRATEGIES

if TYPE_CHECKING:
    from farm.tune.limits import Limits
    from farm.tune.records import Records
    from farm.tune.templates import Template, template_for
    from farm.tune.tuner import Progress
    from farm.tune.tuning import Tuned, tune

__all__ = [
    "DEFAULT_STRATEGY",
    "STRATEGIES",
    "Limits",
    "Parameter",
    "Progress",
    "Records",
    "Search",
    "Space",
    "Template",
    "Tuned",
    "template_for",
    "tune",
]

_HOME = {
    "Limits": "farm.tune.limits",
    "Progress": "farm.tune.tuner",
    "Records": "farm.tune.records",
    "Template": "farm.tune.templates",
    "Tuned": "farm.tune.tuning",
    "template_for": "farm.tune.templates",
    "tune": "farm.tune.tuning",
}
"""What is loaded when it is first used: a database, a connection and compilers are heavy."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'farm.tune' has no attribute {name!r}")
