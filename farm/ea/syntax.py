"""The forms that an instruction takes in assembly text.

Owns the table of forms: mnemonic with suffix, the operands written by position, and the fields that
the suffix fixes. Everything else about a field (width, default) comes from `farm.ea.isa`. Does not
own reading (`farm.ea.assembly`) or writing (`farm.ea.disassembly`).

Invariant: every instruction has exactly one form, and a form with its keywords can express every
value of every field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from farm.ea.isa import (
    LAYOUTS,
    UNARY,
    Engine,
    Instruction,
    Layout,
    Load,
    Space,
    Transfer,
    VecOp,
    layout_of,
)

SPACE_LETTER = {Space.SPAD: "s", Space.ACC: "c"}
REGISTER_LETTER = "b"
ZERO = "zero"


@dataclass(frozen=True, slots=True)
class RowOperand:
    """``s[row]`` or ``c[row]``; the letter is fixed, or is the value of `space_field`."""

    field: str
    space: Space | None = None
    space_field: str | None = None


@dataclass(frozen=True, slots=True)
class DramOperand:
    """``NAME+offset``, or ``zero`` for a load that only fills."""

    may_fill: bool


@dataclass(frozen=True, slots=True)
class SecondOperand:
    """Second operand of VEC: ``c[row]``, ``b[register]`` or ``#immediate``."""


@dataclass(frozen=True, slots=True)
class RegisterOperand:
    """``b[register]``."""

    field: str


@dataclass(frozen=True, slots=True)
class NumberOperand:
    """An integer expression."""

    field: str


Operand = RowOperand | DramOperand | SecondOperand | RegisterOperand | NumberOperand


@dataclass(frozen=True, slots=True)
class Form:
    """One way to begin a line: ``text``, then `operands`, then keywords for what is left."""

    text: str
    layout: Layout
    operands: tuple[Operand, ...] = ()
    fixed: dict[str, int] = field(default_factory=dict)

    @property
    def implied(self) -> dict[str, Any]:
        """Values of the fields and flags that need not be written."""
        return {**self.layout.defaults, **self.fixed}

    @property
    def flags(self) -> list[str]:
        """Flags, each written as a bare word."""
        return [flag for flag in self.layout.flags if flag is not None]


_GEMM_OPERANDS = (
    RowOperand("c", Space.ACC),
    RowOperand("a", Space.SPAD),
    RowOperand("w", Space.SPAD),
)
_DST = RowOperand("dst", space_field="dsp")
_S1 = RowOperand("s1", space_field="s1sp")
_TRANSFER_SUFFIX = {Transfer.SPAD_I8: "s", Transfer.ACC_I32: "c", Transfer.ACC_I8: "w"}


def _vec_form(layout: Layout, op: VecOp) -> Form:
    text = f"{layout.mnemonic}.{op.name.lower()}"
    if op is VecOp.SPLAT:
        return Form(text, layout, (_DST, SecondOperand()), {"op": op, "sinc": 0})
    if op in UNARY:
        return Form(text, layout, (_DST, _S1), {"op": op})
    return Form(text, layout, (_DST, _S1, SecondOperand()), {"op": op})


def _dma_form(layout: Layout, space: Transfer) -> Form:
    load = layout.kind is Load
    operands = (RowOperand("row", space.space), DramOperand(may_fill=load))
    text = f"{layout.mnemonic}.{_TRANSFER_SUFFIX[space]}"
    return Form(text, layout, operands if load else operands[::-1], {"space": space})


def _forms(layout: Layout) -> list[Form]:
    name = layout.mnemonic
    match name:
        case "vec":
            return [_vec_form(layout, op) for op in VecOp]
        case "ld" | "st":
            return [_dma_form(layout, space) for space in Transfer]
        case "sync":
            return [_engine_form(layout, engine, ()) for engine in Engine]
        case "mark":
            return [_engine_form(layout, engine, (NumberOperand("tag"),)) for engine in Engine]
        case "setb":
            return [Form(name, layout, (RegisterOperand("reg"), NumberOperand("value")))]
        case "gemm":
            return [Form(name, layout, _GEMM_OPERANDS)]
        case _:
            return [Form(name, layout)]


def _engine_form(layout: Layout, engine: Engine, operands: tuple[Operand, ...]) -> Form:
    text = f"{layout.mnemonic}.{engine.name.lower()}"
    return Form(text, layout, operands, {"engine": engine})


FORMS: dict[str, Form] = {form.text: form for layout in LAYOUTS for form in _forms(layout)}

_SELECTOR = {"vec": "op", "ld": "space", "st": "space", "sync": "engine", "mark": "engine"}
_FORM_OF: dict[tuple[type[Instruction], int | None], Form] = {
    (form.layout.kind, form.fixed.get(_SELECTOR.get(form.layout.mnemonic, ""))): form
    for form in FORMS.values()
}


def form_of(instruction: Instruction) -> Form:
    """Return the form in which `instruction` is written."""
    layout = layout_of(instruction)
    selector = _SELECTOR.get(layout.mnemonic)
    return _FORM_OF[type(instruction), None if selector is None else getattr(instruction, selector)]
