"""Expressions as OpenCL C.

Owns: names, types, constants, one text for each operation. Does not own: statements (`source`).

Invariant: what is written is defined by OpenCL C for every operand and gives the IR's value: integers are added as
unsigned ones, divisions look at their divisor, conversions saturate; a condition's untaken side is not evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from farm.codegen.opencl.halves import HELPERS, NEEDED
from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import Binary, BinaryOp, Cast, Compare, Const, Expr, Load, Math, Select, Var
from farm.ir.printer import COMPARE

DTYPES = {
    DType.BOOL: "uchar",
    DType.INT8: "char",
    DType.INT16: "short",
    DType.INT32: "int",
    DType.INT64: "long",
    DType.UINT8: "uchar",
    DType.UINT16: "ushort",
    DType.UINT32: "uint",
    DType.UINT64: "ulong",
    DType.FLOAT16: "float",
    DType.BFLOAT16: "float",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
}
"""Type of a value; a bool value is 0 or 1, and floats of 16 bits are float32."""

MEMORY = DTYPES | {DType.FLOAT16: "ushort", DType.BFLOAT16: "ushort"}
"""Type of an element in memory."""

_FLOAT = {BinaryOp.ADD: "+", BinaryOp.SUB: "-", BinaryOp.MUL: "*", BinaryOp.DIV: "/"}
_WRAPPING = {BinaryOp.ADD: "+", BinaryOp.SUB: "-", BinaryOp.MUL: "*"}
_BITS = {BinaryOp.AND: "&", BinaryOp.OR: "|", BinaryOp.XOR: "^"}
_ORDERED = {BinaryOp.MIN: "<", BinaryOp.MAX: ">"}


def buffer_name(name: str) -> str:
    """Return a buffer's name in OpenCL C, where no keyword is in its way."""
    return f"b_{name}"


def variable_name(name: str) -> str:
    """Return a loop variable's name."""
    return f"v_{name}"


@dataclass
class Expressions:
    """Writes expressions; `helpers` collects the functions that they call, in order of first use."""

    helpers: dict[str, str] = field(default_factory=dict)

    def text(self, expr: Expr) -> str:
        """Return an expression's text, in parentheses where that matters."""
        match expr:
            case Const(value, dtype):
                return constant(value, dtype)
            case Var(name):
                return variable_name(name)
            case Load(buffer, indices):
                element = self.element(buffer, indices)
                if buffer.dtype.is_half:
                    return self._helper(f"from_{buffer.dtype}", element)
                return f"({element} != 0)" if buffer.dtype is DType.BOOL else element
            case Select(condition, a, b):
                return f"({self.text(condition)} ? {self.text(a)} : {self.text(b)})"
            case Compare(op, a, b):
                return f"({self.text(a)} {COMPARE[op.value]} {self.text(b)})"
            case Cast(dtype, value):
                return self._cast(self.text(value), value.dtype, dtype)
            case Math(op, value):
                return self._rounded(f"{op.value}({self.text(value)})", expr.dtype)
            case Binary(op, a, b):
                return self._binary(op, expr.dtype, self.text(a), self.text(b))
            case _:
                raise AssertionError(f"unknown expression {type(expr).__name__}")

    def element(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        """Return the text of an element in memory, row-major."""
        terms = []
        for axis, index in enumerate(indices):
            stride = math.prod(buffer.shape[axis + 1 :])
            text = self.text(index)
            terms.append(text if stride == 1 else f"{text} * {stride}L")
        return f"{buffer_name(buffer.name)}[{' + '.join(terms) or '0'}]"

    def stored(self, value: Expr) -> str:
        """Return the text of a value as it is stored."""
        text = self.text(value)
        return self._helper(f"to_{value.dtype}", text) if value.dtype.is_half else text

    def _helper(self, name: str, *args: str) -> str:
        """Call a function that `HELPERS` has; those that it calls come first."""
        for needed in (*NEEDED.get(name, ()), name):
            self.helpers.setdefault(needed, HELPERS[needed])
        return f"farm_{name}({', '.join(args)})"

    def _rounded(self, text: str, dtype: DType) -> str:
        return self._helper(f"round_{dtype}", text) if dtype.is_half else text

    def _binary(self, op: BinaryOp, dtype: DType, a: str, b: str) -> str:
        if dtype.is_float and op in _FLOAT:
            return self._rounded(f"({a} {_FLOAT[op]} {b})", dtype)
        if op in _BITS:
            return f"(({DTYPES[dtype]})({a} {_BITS[op]} {b}))"
        return self._call(f"{op.value}_{dtype}", lambda: _binary_body(op, dtype), dtype, a, b)

    def _cast(self, value: str, source: DType, dtype: DType) -> str:
        if source is dtype:
            return value
        if dtype is DType.BOOL:
            return f"({value} != 0)"
        kind = DTYPES[dtype]
        if dtype.is_half:
            return self._rounded(self._single(value, source, dtype), dtype)
        if source is DType.BOOL:
            return f"(({kind}){value})"
        if source.is_float and not dtype.is_float:
            body = f"return a != a ? ({kind})0 : convert_{kind}_sat_rtz(a);"
            return self._call(f"to_{dtype}_{source}", lambda: body, dtype, value, source=source)
        return f"convert_{kind}({value})"

    def _single(self, value: str, source: DType, dtype: DType) -> str:
        """Return a value as a float32 that may be rounded once more to a float of 16 bits."""
        if source is DType.FLOAT64:
            return self._helper("odd_float64", value)
        if source.is_float:
            return value
        if dtype is DType.BFLOAT16 and source.bits > 16:
            return self._helper(f"odd_{'int64' if source.is_signed else 'uint64'}", value)
        return f"((float){value})"

    def _call(
        self,
        name: str,
        body: Callable[[], str],
        dtype: DType,
        *args: str,
        source: DType | None = None,
    ) -> str:
        name = f"farm_{name}"
        if name not in self.helpers:
            kind, given = DTYPES[dtype], DTYPES[source or dtype]
            params = ", ".join(f"{given} {letter}" for letter in "ab"[: len(args)])
            self.helpers[name] = f"inline {kind} {name}({params}) {{\n  {body()}\n}}\n"
        return f"{name}({', '.join(args)})"


def _binary_body(op: BinaryOp, dtype: DType) -> str:
    kind = DTYPES[dtype]
    if op in _ORDERED:
        return f"return a {_ORDERED[op]} b ? a : b;"
    unsigned = kind if kind.startswith("u") else f"u{kind}"
    wide = "ulong" if dtype.bits == 64 else "uint"
    if op in _WRAPPING:
        return f"return as_{kind}(({unsigned})(({wide})a {_WRAPPING[op]} ({wide})b));"
    if op is BinaryOp.SHL:
        return f"return as_{kind}(({unsigned})(({wide})a << (b & {dtype.bits - 1})));"
    if op is BinaryOp.SHR:
        return f"return ({kind})(a >> (b & {dtype.bits - 1}));"
    sign = "/" if op is BinaryOp.FLOORDIV else "%"
    if not dtype.is_signed:
        return f"return b == 0 ? ({kind})0 : ({kind})(a {sign} b);"
    if op is BinaryOp.FLOORDIV:
        return (
            f"if (b == 0) return 0;\n  if (b == -1) return as_{kind}(({unsigned})(0 - ({wide})a));\n  "
            f"{kind} q = a / b;\n  return (a % b != 0) && ((a < 0) != (b < 0)) ? q - 1 : q;"
        )
    return (
        f"if (b == 0 || b == -1) return 0;\n  {kind} r = a % b;\n  "
        f"return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;"
    )


def constant(value: bool | int | float, dtype: DType) -> str:
    """Return a constant's text, of its exact value and type."""
    kind = DTYPES[dtype]
    if dtype.is_float:
        number = float(value)
        if math.isnan(number):
            return f"(({kind})NAN)"
        if math.isinf(number):
            return f"(({kind}){'-' if number < 0 else ''}INFINITY)"
        return f"({number.hex()}{'' if dtype is DType.FLOAT64 else 'f'})"
    if dtype is DType.INT64:
        least = -(1 << 63)
        return "(-0x7fffffffffffffffL - 1)" if value == least else f"({int(value)}L)"
    if dtype is DType.UINT64:
        return f"{int(value)}UL"
    return f"(({kind}){int(value)})" if dtype.bits < 32 or value < 0 else f"(({kind}){int(value)}u)"
