"""What an accelerator says of itself, asked in a process of its own.

Owns: that process (``python -m farm.accel.asking NAME``), its time limit, and checking what it says.
Does not own: builds and launches, which have processes of their own.

Invariant: whatever the plug-in does at import, the process that asks goes on, and the answer names the plug-in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import cast

from farm.accel import guard
from farm.accel.accelerator import TIMINGS, Timing
from farm.accel.discovery import BUILT_IN, known, load
from farm.core.apart import answers, run_apart
from farm.errors import FarmError

LIMIT_S = 30.0
MAX_CONFIGS = 1000


@dataclass(frozen=True, slots=True)
class Facts:
    """What an accelerator says of itself.

    Attributes
    ----------
    who
        ``NAME (PACKAGE VERSION)``.
    ways
        As `Accelerator.ways`.
    """

    name: str
    who: str
    version: int
    timing: Timing
    ways: tuple[str, ...]
    configs: tuple[str, ...]


def ask(name: str, limit_s: float | None = None) -> Facts:
    """Return what an accelerator says of itself; a plug-in is asked in a process of its own.

    Raises
    ------
    InvalidTarget
        There is none of this name, or it cannot be used.
    PlugInFailed
        It raised, ended its process, said nothing within the limit, or said nonsense.
    """
    if name in BUILT_IN:
        return facts_of(name)
    value = _ask([name], limit_s)
    if not isinstance(value, Mapping) or set(value) != set(Facts.__slots__):
        raise guard.nonsense(known(name), "description", value, "facts")
    timing = value["timing"] if value["timing"] in TIMINGS else "simulated"
    texts = [tuple(map(str, value[each])) for each in ("ways", "configs")]
    return Facts(name, str(known(name)), int(value["version"]), cast(Timing, timing), *texts)


def probe(name: str, config: str, unit: str, limit_s: float | None = None) -> str:
    """Return why a device of an accelerator cannot be used now, empty if it can; raises as `ask`."""
    if name in BUILT_IN:
        return ""
    return guard.text(known(name), "probe", _ask([name, config, unit], limit_s))


def facts_of(name: str) -> Facts:
    """Return what an accelerator says of itself, by importing it into this process; raises as `load`."""
    loaded = load(name)
    it = loaded.accelerator
    return Facts(name, loaded.who, it.version, it.timing, it.ways, tuple(it.configs)[:MAX_CONFIGS])


def _ask(arguments: list[str], limit_s: float | None) -> object:
    who = known(arguments[0])
    limit_s = LIMIT_S if limit_s is None else limit_s
    return guard.told(who, run_apart("farm.accel.asking", arguments, limit_s=limit_s), limit_s)


def answer(arguments: list[str]) -> dict[str, object]:
    """Return what this process says: the facts of an accelerator, or what the probe of one device said."""
    try:
        if len(arguments) == 1:
            return {"answer": asdict(facts_of(arguments[0]))}
        name, config, unit = arguments
        loaded = load(name)
        value = loaded.config(config)
        hook = loaded.accelerator.probe
        said = "" if hook is None else guard.call(loaded.who, "probe", hook, unit, value)
        return {"answer": guard.text(loaded.who, "probe", said)}
    except FarmError as error:
        return {"error": error.message, "code": error.code}


if __name__ == "__main__":
    tell = answers()
    tell(answer(sys.argv[1:]))
    os._exit(0)  # whatever threads it left
