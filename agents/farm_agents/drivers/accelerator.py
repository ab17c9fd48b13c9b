"""An accelerator that is described by a `farm.accel.Accelerator`, with this host as the host of its functions.

Owns: what the device is. Does not own: the accelerator's code, which runs in processes of its own (`farm.accel.asking`)
and in workers.

Invariant: it also runs this host's CPU functions, since an artifact's functions call each other on its host. A plug-in
that fails is a BAD device whose cause names it; nothing of a plug-in runs in this process.
"""

from __future__ import annotations

import re

from farm.accel.asking import Facts, ask, probe
from farm.errors import FarmError, InvalidInput
from farm.target import Target
from farm_agents.drivers.base import GOOD, Checked, Description, TimingClass, bad
from farm_agents.drivers.cpu import (
    ADDRESS_SPACE_BYTES,
    host_arch,
    host_capabilities,
)
from farm_agents.worker.loaders import LoaderSpec

USUAL = {"ea": "ea16"}
"""Usual configurations that have another name than their accelerator."""
DESCRIBE_LIMIT_S = 10.0
"""The agent waits for this before it starts."""
CHECK_LIMIT_S = 30.0
_ARGUMENT = re.compile(
    r"(?P<config>[A-Za-z0-9][A-Za-z0-9._-]{0,63})?(?:/(?P<unit>[A-Za-z0-9._-]{1,63}))?"
)


class AcceleratorDriver:
    """One device of an accelerator; the argument is ``CONFIG``, ``CONFIG/UNIT``, or empty for the usual one."""

    def __init__(self, name: str, argument: str) -> None:
        match = _ARGUMENT.fullmatch(argument)
        if match is None:
            raise InvalidInput(
                f"device {name}: malformed ({argument[:80]!r}); use {name}, {name}:CONFIG or {name}:CONFIG/UNIT"
            )
        config = match["config"] or USUAL.get(name, name)
        self._name, self._unit = name, match["unit"] or ""
        self._target = Target.parse(f"{name} -config={config}")
        self._config = config
        self._host = host_capabilities()
        self._timing = TimingClass.SIMULATED

    def describe(self) -> Description:
        """Return what the accelerator is."""
        try:
            self._timing = TimingClass(_asked(self._name, DESCRIBE_LIMIT_S).timing.upper())
        except FarmError:  # the check will say it
            self._timing = TimingClass.SIMULATED
        return Description(
            targets=(str(self._target), *self._host.targets),
            labels=(
                ("kind", self._name),
                ("arch", self._name),
                ("config", self._config),
                ("host-arch", host_arch()),
            ),
            timing_class=self._timing,
            provides=self._provides(),
            address_space_bytes=ADDRESS_SPACE_BYTES,
        )

    def check(self) -> Checked:
        """Check that the accelerator answers, has this configuration, and finds the device well."""
        try:
            facts = _asked(self._name, CHECK_LIMIT_S)
            if facts.timing.upper() != self._timing.value:
                return bad(
                    f"device {self._name}: {facts.who} did not answer when the agent started; start the agent again"
                )
            if self._config not in facts.configs:
                return bad(
                    f"device {self._name}:{self._config}: unknown configuration; {facts.who} has "
                    f"{', '.join(facts.configs)}"
                )
            cause = probe(self._name, self._config, self._unit)
        except FarmError as error:
            return bad(error.message)
        return bad(cause) if cause else GOOD

    def loader(self) -> LoaderSpec:
        """Return the loader of the worker's own process, with the accelerator."""
        targets = (str(self._target), *self._host.targets)
        return LoaderSpec("native", self._unit, targets, self._provides())

    def _provides(self) -> tuple[str, ...]:
        return tuple(sorted((*self._target.requires, *self._host.provides)))


def _asked(name: str, limit_s: float) -> Facts:
    """Return what an accelerator says. Errors are not kept: a package that was mended is found by the next check."""
    if name not in _told:
        _told[name] = ask(name, limit_s)
    return _told[name]


_told: dict[str, Facts] = {}
