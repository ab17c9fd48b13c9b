"""Floats of 16 bits in OpenCL C: float32 as values, 16 bits in memory.

Owns: the functions that round and convert. They need no extension of a device: OpenCL has a type half only with one.

Invariant: as `farm.codegen.llvm.halves`, whose algorithms these are.
"""

from __future__ import annotations

_BODIES = {
    ("from_float16", "float", "ushort"): (
        "uint m = a & 0x7fff;\n"
        "  uint large = (m << 13) + (m >= 0x7c00 ? 0x70000000u : 0x38000000u);\n"
        "  uint found = m < 0x400 ? as_uint((float)m * 0x1p-24f) : large;\n"
        "  return as_float(found | (uint)(a & 0x8000) << 16);"
    ),
    ("to_float16", "ushort", "float"): (
        "uint bits = as_uint(a), m = bits & 0x7fffffffu;\n"
        "  uint near = ((m + 0xfffu + (m >> 13 & 1)) >> 13) - 0x1c000u;\n"
        "  if (m < 0x38800000u) near = as_uint(as_float(m) + 0.5f) - 0x3f000000u;\n"
        "  if (m >= 0x477ff000u) near = m > 0x7f800000u ? 0x7e00 : 0x7c00;\n"
        "  return (ushort)(near | (bits >> 16 & 0x8000));"
    ),
    ("round_float16", "float", "float"): "return farm_from_float16(farm_to_float16(a));",
    ("from_bfloat16", "float", "ushort"): "return as_float((uint)a << 16);",
    ("round_bfloat16", "float", "float"): (
        "uint bits = as_uint(a);\n"
        "  uint near = a != a ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1);\n"
        "  return as_float(near & 0xffff0000u);"
    ),
    ("to_bfloat16", "ushort", "float"): ("return (ushort)(as_uint(farm_round_bfloat16(a)) >> 16);"),
    ("odd_float64", "float", "double"): (
        "float near = convert_float_rtz(a);\n"
        "  return a == a && (double)near != a ? as_float(as_uint(near) | 1) : near;"
    ),
    ("odd_uint64", "float", "ulong"): (
        "long beyond = 40 - (long)clz(a);\n  if (beyond <= 0) return (float)a;\n"
        "  ulong kept = a >> beyond;\n"
        "  return (float)((kept | (kept << beyond != a)) << beyond);"
    ),
    ("odd_int64", "float", "long"): (
        "return a < 0 ? -farm_odd_uint64(0 - (ulong)a) : farm_odd_uint64((ulong)a);"
    ),
}

HELPERS = {
    name: f"inline {kind} farm_{name}({given} a) {{\n  {body}\n}}\n"
    for (name, kind, given), body in _BODIES.items()
}
"""Text of each function, by its name without ``farm_``."""

NEEDED = {
    "round_float16": ("from_float16", "to_float16"),
    "to_bfloat16": ("round_bfloat16",),
    "odd_int64": ("odd_uint64",),
}
"""What a function calls."""
