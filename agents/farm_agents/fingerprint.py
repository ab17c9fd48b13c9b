"""Facts of this host that what is measured on it depends on.

Owns: reading them, and the name of those that stay. Does not own: facts of one sample (`worker.sampling`).

Invariant: what cannot be read is None, never guessed; `host_name` is the same after a reboot.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from farm.core.digest import canonical_json

Facts = Mapping[str, str | None]

_CPU_FIELDS = {
    "cpu": ("model name", "Model", "uarch"),
    "microcode": ("microcode",),
}
_SYSTEM = Path("/sys/devices/system/cpu")
_CONTAINERS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
HOST_DIGITS = 16


@functools.cache
def host_facts() -> Facts:
    """Return the facts of this host; read once in a process."""
    info = _cpu_info(_text(Path("/proc/cpuinfo")) or "")
    return {
        **info,
        "arch": platform.machine() or None,
        "cores": str(os.cpu_count()) if os.cpu_count() else None,
        "usable_cores": str(len(os.sched_getaffinity(0))),
        "governor": _text(_SYSTEM / "cpu0/cpufreq/scaling_governor"),
        "smt": _text(_SYSTEM / "smt/control"),
        "turbo_off": _text(_SYSTEM / "intel_pstate/no_turbo"),
        "last_level_cache": _last_level_cache(_SYSTEM / "cpu0/cache"),
        "kernel": platform.release() or None,
        "hypervisor": _hypervisor(_text(Path("/proc/cpuinfo")) or ""),
        "container": _container(),
        "python": platform.python_version(),
        "libc": "-".join(filter(None, platform.libc_ver())) or None,
    }


def host_name(facts: Facts, device: Facts) -> str:
    """Return a short name of a host's facts and a device's: equal names, comparable values."""
    data = canonical_json({**facts, **{f"device.{name}": text for name, text in device.items()}})
    return hashlib.sha256(data).hexdigest()[:HOST_DIGITS]


def _cpu_info(text: str) -> dict[str, str | None]:
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return {
        fact: next((fields[name] for name in names if fields.get(name)), None)
        for fact, names in _CPU_FIELDS.items()
    }


def _hypervisor(cpu_info: str) -> str | None:
    """Return ``yes`` in a virtual machine, ``no`` where the CPU says so, None where it says nothing."""
    flags = [line for line in cpu_info.splitlines() if line.startswith("flags")]
    return None if not flags else ("yes" if "hypervisor" in flags[0].split() else "no")


def _last_level_cache(folder: Path) -> str | None:
    levels = [(_text(it / "level"), _text(it / "size")) for it in sorted(folder.glob("index*"))]
    known = [(int(level), size) for level, size in levels if level and level.isdigit() and size]
    return max(known)[1] if known else None


def _container() -> str | None:
    for path, name in _CONTAINERS.items():
        if Path(path).exists():
            return name
    return _text(Path("/run/systemd/container"))


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
