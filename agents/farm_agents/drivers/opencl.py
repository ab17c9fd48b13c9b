"""A device of OpenCL on this host, with this host as the host of its functions.

Owns: what the device is. Does not own: building and launching (`farm.runtime.opencl`).

Invariant: this process opens no platform, whose libraries start threads: another process is asked.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping

from farm.errors import InvalidInput
from farm.target import Target
from farm_agents.drivers.base import GOOD, Checked, Description, TimingClass, bad
from farm_agents.drivers.cpu import ADDRESS_SPACE_BYTES, host_arch, host_capabilities
from farm_agents.worker.loaders import LoaderSpec

ASKING_LIMIT_S = 60.0
_NAME = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_EXTENSION = re.compile(r"[a-z][a-z0-9_]{0,62}")


class OpenclDriver:
    """One device; the argument is ``PLATFORM.DEVICE``, both counted from 0, and by default ``0.0``."""

    def __init__(self, argument: str) -> None:
        if argument and not _NAME.fullmatch(argument):
            raise InvalidInput(
                f"device opencl: malformed ({argument!r}); use opencl or opencl:PLATFORM.DEVICE such as opencl:0.0"
            )
        self._device = argument or "0.0"
        self._target = Target.parse("opencl")
        self._host = host_capabilities()

    def describe(self) -> Description:
        """Return what the device is."""
        facts = ask(self._device)
        labels = [("kind", "opencl"), ("arch", "opencl"), ("host-arch", host_arch())]
        if "platform" in facts:
            labels.append(("platform", _label(facts["platform"])))
        return Description(
            targets=(str(self._target), *self._host.targets),
            labels=tuple(labels),
            timing_class=TimingClass.NATIVE,
            provides=self._provides(),
            address_space_bytes=ADDRESS_SPACE_BYTES,
        )

    def check(self) -> Checked:
        """Check that the device is there, and the linker that PoCL calls."""
        facts = ask(self._device)
        if "error" in facts:
            return bad(str(facts["error"]))
        if facts.get("platform") == "Portable Computing Language" and shutil.which("ld") is None:
            return bad("ld: not found, and PoCL links with it; install the Debian package binutils")
        return GOOD

    def loader(self) -> LoaderSpec:
        """Return the loader of the worker's own process, with the device."""
        targets = (str(self._target), *self._host.targets)
        return LoaderSpec("opencl", self._device, targets, self._provides())

    def _provides(self) -> tuple[str, ...]:
        found = {*self._target.requires, *self._host.provides}
        extensions = ask(self._device).get("extensions")
        for name in extensions if isinstance(extensions, list) else ():
            if isinstance(name, str) and _EXTENSION.fullmatch(name):
                found.add(f"opencl-extension:{name}")
        return tuple(sorted(found))


_told: dict[str, Mapping[str, object]] = {}


def ask(device: str) -> Mapping[str, object]:
    """Return what `farm.runtime.opencl_device` says of a device; ``error`` says why it says nothing.

    Errors are not kept: a device that comes back is found by the next check.
    """
    facts = _told.get(device) or _ask(device)
    if "error" not in facts:
        _told[device] = facts
    return facts


def _ask(device: str) -> Mapping[str, object]:
    command = [sys.executable, "-P", "-m", "farm.runtime.opencl_device", device]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASKING_LIMIT_S,
            check=True,
        )
        value = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"error": f"opencl: the device's platform failed ({error}); look at its driver"}
    return value if isinstance(value, dict) else {"error": "opencl: said nothing; reinstall"}


def _label(value: object) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", str(value))[:63]
