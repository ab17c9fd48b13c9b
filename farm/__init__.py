"""Kernel Farm: build kernels for several kinds of device in one request, run and time them on the devices.

Everything here is loaded when first used, so that ``import farm`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm import te, tune
    from farm.artifact import Artifact, inspect_bytes, merge
    from farm.building import build, combine
    from farm.client import connect
    from farm.exporting import export
    from farm.ir.declaration import read_source
    from farm.runtime.local import load_local as load
    from farm.target import Target

__version__ = "0.1.0"

__all__ = [
    "Artifact",
    "Target",
    "build",
    "combine",
    "connect",
    "export",
    "inspect_bytes",
    "load",
    "merge",
    "read_source",
    "te",
    "tune",
]

_HOME = {
    "Artifact": "farm.artifact",
    "Target": "farm.target",
    "build": "farm.building",
    "combine": "farm.building",
    "connect": "farm.client",
    "export": "farm.exporting",
    "inspect_bytes": "farm.artifact",
    "load": "farm.runtime.local:load_local",
    "merge": "farm.artifact",
    "read_source": "farm.ir.declaration",
}

_MODULES = ("te", "tune")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    if name in _MODULES:
        return importlib.import_module(f"farm.{name}")
    if name in _HOME:
        module, _, attribute = _HOME[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    raise AttributeError(f"module 'farm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
