"""The C header of exported functions, and the tables of an exported program.

Owns: their text. Does not own: files, or the calling convention (`farm.artifact.abi`).

Invariant: what is declared is what the functions check; the header needs nothing but C99 and is also C++.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version

from farm.artifact.abi import DTYPES, ReturnKind
from farm.artifact.signature import ParamSpec, Signature

_C_TYPES = {
    "bool": "uint8_t",
    "float32": "float",
    "float64": "double",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
}
_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr
const_cast continue decltype default delete do double dynamic_cast else enum explicit export extern false float
for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
protected public register reinterpret_cast requires restrict return short signed sizeof static static_assert
static_cast struct switch template this thread_local throw true try typedef typeid typename typeof union unsigned
using virtual void volatile wchar_t while xor xor_eq concept co_await co_return co_yield
"""
_KEYWORDS = frozenset(
    (*_WORDS.split(), "main")
)  # of C and C++, and the one name whose type they say
_ROLES = {"input": 1, "output": 2, "inout": 3}

_DLPACK = """\
/* DLPack 1.0, as in dlpack.h; that header may be included before this one. */
#ifndef DLPACK_MAJOR_VERSION
#ifndef KERNEL_FARM_DLTENSOR
#define KERNEL_FARM_DLTENSOR
typedef struct { int32_t device_type, device_id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape, *strides; /* strides 0: row-major */
  uint64_t byte_offset;
} DLTensor;
#endif
#endif
"""


def header_text(name: str, target: str, functions: Mapping[str, Signature]) -> str:
    """Return the header of the functions of a target; `name` makes its guard."""
    guard = f"KERNEL_FARM_{re.sub('[^A-Z0-9]', '_', name.upper())}_H"
    kinds = ", ".join(f"{int(kind)} {kind.name}" for kind in ReturnKind if kind)
    body = "\n".join(_function(symbol, signature) for symbol, signature in functions.items())
    return f"""\
/* Made by kernel-farm {version("kernel-farm")} for: {target}

   Each function returns 0, or why it did nothing: a kind in its low byte ({kinds})
   and the index of the argument above it. NAME_call takes pointers to dense row-major arrays that do not overlap. */
#ifndef {guard}
#define {guard}
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{_DLPACK}
{body}
#ifdef __cplusplus
}}
#endif
#endif
"""


def program_tables(functions: Mapping[str, Signature]) -> str:
    """Return ``exported.h`` of `program.c`."""
    parts, rows = [], []
    for index, (symbol, signature) in enumerate(functions.items()):
        params = ", ".join(map(_row, signature.params))
        # By an assembler's name, since it may be a word of C, such as double.
        parts.append(
            f'extern i32 function_{index}(const DLTensor *const *args, i32 count) __asm__("{symbol}");\n'
            f"static const Parameter parameters_{index}[] = {{{params}}};"
        )
        text = f"{symbol}({', '.join(f'{spec} {spec.role}' for spec in signature.params)})"
        rows.append(
            f'{{"{symbol}", "{text}", function_{index}, {len(signature.params)}, parameters_{index}}}'
        )
    table = f"static const Exported exported[] = {{{', '.join(rows)}}};"
    return "\n".join([*parts, table, f"enum {{ EXPORTED = {len(rows)} }};", ""])


def c_type(spec: ParamSpec) -> str:
    """Return the C type of an array's elements; half floats are their bits."""
    return _C_TYPES.get(spec.dtype, f"{spec.dtype}_t")


def c_name(name: str) -> str:
    """Return a name that C and C++ leave free: their words, and ``main``, get an underscore at their end."""
    return f"{name}_" if name in _KEYWORDS else name


def _function(symbol: str, signature: Signature) -> str:
    params = signature.params
    name, label = c_name(symbol), ""
    if name != symbol:
        label = f' __asm__("{symbol}")'
    const = {spec.name: "const " if spec.role == "input" else "" for spec in params}
    arrays = ", ".join(f"{const[spec.name]}{c_type(spec)} *{c_name(spec.name)}" for spec in params)
    lines = [f"/* {symbol}({', '.join(f'{spec} {spec.role}' for spec in params)}) */"]
    lines.append(f"int32_t {name}(const DLTensor *const *args, int32_t num_args){label};")
    lines.append(f"static inline int32_t {symbol}_call({arrays}) {{")
    tensors, pointers = [], []
    for index, spec in enumerate(params):
        code, bits = DTYPES[spec.dtype]
        extents = ", ".join(map(str, spec.shape)) or "0"
        lines.append(f"  int64_t farm_shape_{index}[] = {{{extents}}};")
        kind = f"{{1, 0}}, {len(spec.shape)}, {{{code}, {bits}, 1}}"
        tensors.append(f"{{(void *){c_name(spec.name)}, {kind}, farm_shape_{index}, 0, 0}}")
        pointers.append(f"&farm_tensors[{index}]")
    lines.append(f"  DLTensor farm_tensors[] = {{{', '.join(tensors)}}};")
    lines.append(f"  const DLTensor *farm_args[] = {{{', '.join(pointers)}}};")
    lines.append(f"  return {name}(farm_args, {len(params)});")
    return "\n".join([*lines, "}", ""])


def _row(spec: ParamSpec) -> str:
    code, bits = DTYPES[spec.dtype]
    extents = ", ".join(map(str, spec.shape)) or "0"
    align = max(spec.alignment_bytes, 64)
    facts = f"{code}, {bits}, {_ROLES[spec.role]}, {len(spec.shape)}, {align}, {spec.size_bytes}ull"
    return f'{{"{spec.name}", {facts}, {{{extents}}}}}'
