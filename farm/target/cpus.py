"""What named CPUs have, so that a device of another name with the same features runs their code.

Owns: features by architecture and CPU name, as LLVM names both. Does not own: what this machine has
(`farm.target.host`), or what an emulator plays (`farm.runtime.qemu`).

Invariant: a CPU that is listed has every feature listed for it, and lists every feature that LLVM's code generator uses
for it unasked; system features (virtualisation, profiling) are left out, as no code generator uses them.

Notes
-----
From LLVM 22's processor definitions (``X86.td``, ``AArch64Processors.td``, ``ARMProcessors.td``,
``RISCVProcessors.td``).
"""

from __future__ import annotations

from farm.target.host import X86_LEVELS

_V3 = frozenset(name for _, names in X86_LEVELS[:3] for name in names)
_V4 = _V3 | set(X86_LEVELS[3][1])
_SKYLAKE = _V3 | {"adx", "aes", "pclmul"}
_ICELAKE = (
    _V4
    | {"adx", "aes", "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni"}
    | {"avx512vpopcntdq", "gfni", "pclmul", "sha", "vaes", "vpclmulqdq"}
)
_ZEN1 = _SKYLAKE | {"sha", "sse4a"}
_ZEN3 = _ZEN1 | {"vaes", "vpclmulqdq"}
_V8 = frozenset({"aes", "crc", "neon", "sha2"})
_V82 = _V8 | {"dotprod", "fullfp16", "lse", "rcpc", "rdm"}
_V7 = frozenset({"neon", "vfp3"})
_V7VE = _V7 | {"hwdiv", "hwdiv-arm", "vfp4"}
RISCV_LINUX = frozenset("acdfm")
"""What every Linux distribution for 64-bit RISC-V takes for granted, and clang with it; LLVM alone assumes nothing."""

CPUS: dict[str, dict[str, frozenset[str]]] = {
    "x86_64": {
        "ivybridge": (_V3 - {"avx2", "bmi", "bmi2", "fma", "lzcnt", "movbe"}) | {"pclmul"},
        "haswell": _V3 | {"pclmul"},
        "skylake": _SKYLAKE,
        "skylake-avx512": _SKYLAKE | _V4,
        "icelake-server": _ICELAKE,
        "sapphirerapids": _ICELAKE
        | {"amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512fp16", "avxvnni"},
        "znver1": _ZEN1,
        "znver2": _ZEN1,
        "znver3": _ZEN3,
        "znver4": _ZEN3 | _ICELAKE | {"avx512bf16"},
    },
    "aarch64": {
        "cortex-a53": _V8,
        "cortex-a57": _V8,
        "cortex-a72": _V8,
        "cortex-a73": _V8,
        "cortex-a76": _V82,
        "cortex-a78ae": _V82,
        "cortex-x1": _V82,
        "carmel": _V82 - {"dotprod", "rcpc"},
        "neoverse-n1": _V82,
        "neoverse-v1": _V82
        | {"bf16", "complxnum", "fp16fml", "i8mm", "jsconv", "sha3", "sm4", "sve"},
    },
    "armv7": {
        "cortex-a7": _V7VE,
        "cortex-a8": _V7,
        "cortex-a9": _V7 | {"fp16"},
        "cortex-a15": _V7VE,
    },
    "riscv64": {
        "sifive-u74": RISCV_LINUX,
        "spacemit-x60": RISCV_LINUX
        | {"v", "zba", "zbb", "zbc", "zbkc", "zbs", "zfh", "zicond", "zvfh", "zvl256b"},
    },
}


def cpu_features(arch: str, cpu: str) -> frozenset[str] | None:
    """Return the features that a CPU name stands for, or None where only LLVM's tables know."""
    if cpu == "generic":
        return frozenset()
    if arch == "x86_64":
        found: set[str] = set()
        for level, features in X86_LEVELS:
            found.update(features)
            if level == cpu:
                return frozenset(found)
    return CPUS.get(arch, {}).get(cpu)


def has_feature(arch: str, cpu: str, attributes: str, name: str) -> bool:
    """Tell whether a CPU, with attributes as in ``-mattr``, is sure to have a feature."""
    given = attributes.split(",")
    by_name = name in (cpu_features(arch, cpu) or ())
    return (by_name or f"+{name}" in given) and f"-{name}" not in given
