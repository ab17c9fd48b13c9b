"""What this machine is, read without any compiler, so that parsing a target stays light."""

from __future__ import annotations

import functools
import platform
import sys
from pathlib import Path

# Micro-architecture levels of the x86-64 psABI: LLVM feature names that each level adds.
X86_LEVELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("x86-64", ()),
    ("x86-64-v2", ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")),
    ("x86-64-v3", ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")),
    ("x86-64-v4", ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")),
)

# Linux names its x86 flags differently from LLVM in these cases.
_FLAG_TO_FEATURE = {
    "abm": "lzcnt",
    "bmi1": "bmi",
    "lahf_lm": "sahf",
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}

_ARCH_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}


def canonical_arch(arch: str) -> str:
    """Return LLVM's usual name of an architecture: ``amd64`` → ``x86_64``, ``arm64`` → ``aarch64``."""
    return _ARCH_ALIASES.get(arch.lower(), arch)


def host_triple() -> str:
    """Return this machine's canonical triple, such as ``x86_64-linux-gnu``."""
    arch = canonical_arch(platform.machine())
    if sys.platform == "darwin":
        return f"{arch}-apple-darwin"
    return f"{arch}-linux-gnu"


@functools.cache
def host_cpu_features() -> frozenset[str]:
    """Return LLVM names of the CPU features that the kernel reports; empty where it reports none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(_FLAG_TO_FEATURE.get(flag, flag) for flag in value.split())
    return frozenset()


def host_cpu() -> str:
    """Return the best portable CPU name that this machine satisfies: an x86-64 level, else ``generic``.

    Notes
    -----
    A level, not the marketing name, so that machines of one level share builds, and so that a virtual machine that
    hides some features of its CPU is described by what it really has.
    """
    if canonical_arch(platform.machine()) != "x86_64":
        return "generic"
    best = X86_LEVELS[0][0]
    for level, features in X86_LEVELS:
        if not host_cpu_features().issuperset(features):
            break
        best = level
    return best


def level_features(cpu: str) -> frozenset[str] | None:
    """Return the features that CPU name `cpu` stands for, or None where only LLVM's tables know."""
    if cpu == "generic":
        return frozenset()
    found: set[str] = set()
    for level, features in X86_LEVELS:
        found.update(features)
        if level == cpu:
            return frozenset(found)
    return None
