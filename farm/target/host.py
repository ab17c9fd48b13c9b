"""What this machine is, read without any compiler, so that parsing a target stays light.

Owns: names of architectures, x86-64 levels, Linux's flags as LLVM names them. Does not own: what LLVM finds
(`farm.runtime.local`).

Invariant: a level is named only if the machine has every feature of it.
"""

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

# Linux names some flags of x86 and Arm differently from LLVM; all others have the same name.
_FLAG_TO_FEATURE = {
    "abm": "lzcnt",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "amx_tile": "amx-tile",
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "asimdhp": "fullfp16",
    "asimdrdm": "rdm",
    "atomics": "lse",
    "avx512_bf16": "avx512bf16",
    "avx512_bitalg": "avx512bitalg",
    "avx512_fp16": "avx512fp16",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
    "crc32": "crc",
    "fcma": "complxnum",
    "fp": "fp-armv8",
    "jscvt": "jsconv",
    "lahf_lm": "sahf",
    "lrcpc": "rcpc",
    "pclmulqdq": "pclmul",
    "pni": "sse3",
    "rdrand": "rdrnd",
    "sha_ni": "sha",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}

_ARCH_ALIASES = {
    "amd64": "x86_64",
    "arm64": "aarch64",
    "armv7a": "armv7",
    "armv7hl": "armv7",
    "armv7l": "armv7",
}


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
        return features_in(Path("/proc/cpuinfo").read_text())
    except OSError:
        return frozenset()


def features_in(cpuinfo: str) -> frozenset[str]:
    """Return LLVM names of the features in the text of Linux's ``/proc/cpuinfo``: those of its first CPU."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(_FLAG_TO_FEATURE.get(flag, flag) for flag in value.split())
    return frozenset()


def host_cpu() -> str:
    """Return the best portable CPU name that this machine satisfies: an x86-64 level, else ``generic``."""
    if canonical_arch(platform.machine()) != "x86_64":
        return "generic"
    return level_of(host_cpu_features())


def level_of(features: frozenset[str]) -> str:
    """Return the highest x86-64 level whose features, and those of all levels below, are present.

    Notes
    -----
    A level, not the marketing name, so that machines of one level share builds, and so that a virtual machine that
    hides some features of its CPU is described by what it really has.
    """
    best = X86_LEVELS[0][0]
    for level, needed in X86_LEVELS:
        if not features.issuperset(needed):
            break
        best = level
    return best
