"""Programs and instructions as assembly text.

Owns writing the text; `farm.ea.assembly` reads it, `farm.ea.syntax` has the forms.

Invariant: the text of any program assembles to an equal program.
"""

from __future__ import annotations

from typing import Any

from farm.ea.isa import ISA_VERSION, Instruction, Source, Space, layout_of
from farm.ea.program import Program
from farm.ea.syntax import (
    REGISTER_LETTER,
    SPACE_LETTER,
    ZERO,
    DramOperand,
    Form,
    NumberOperand,
    Operand,
    RegisterOperand,
    RowOperand,
    SecondOperand,
    form_of,
)

_SUFFIX_COLUMN = 72


def disassemble(program: Program) -> str:
    """Return the assembly text of `program`, headers first, one instruction a line."""
    lines = [f".isa {ISA_VERSION}", f".mach {program.config.name}"]
    if program.args:
        lines.append(".args " + ", ".join(f"{arg.name}[{arg.min_bytes}]" for arg in program.args))
    if program.semaphores:
        lines.append(".sem " + ", ".join(program.semaphores))
    lines.append("")
    for instruction in program.instructions:
        body = _body(instruction, program)
        suffix = _suffix(instruction, program)
        lines.append(f"{body:<{_SUFFIX_COLUMN}}{suffix}" if suffix else body)
    return "\n".join(lines) + "\n"


def format_instruction(instruction: Instruction, program: Program) -> str:
    """Return one instruction as text, with the names that `program` gives."""
    return _body(instruction, program) + _suffix(instruction, program)


def _body(instruction: Instruction, program: Program) -> str:
    layout = layout_of(instruction)
    if not all(each.legal(getattr(instruction, each.name)) for each in layout.fields if each.enum):
        return repr(instruction)  # an enum field holds what has no name; only reports show this
    form = form_of(instruction)
    left = {item.name: getattr(instruction, item.name) for item in layout.fields}
    left |= {flag: getattr(instruction, flag) for flag in form.flags}
    operands = ", ".join(_operand(operand, left, program) for operand in form.operands)
    keywords = _keywords(form, left)
    return " ".join(
        part for part in (form.text, ", ".join(filter(None, (operands, keywords)))) if part
    )


def _keywords(form: Form, left: dict[str, Any]) -> str:
    implied = form.implied
    words = []
    for name, value in left.items():
        if name in implied and implied[name] == value:
            continue
        words.append(name if name in form.flags else f"{name}={int(value)}")
    return " ".join(words)


def _operand(operand: Operand, left: dict[str, Any], program: Program) -> str:
    """Format one operand and take the fields it expresses out of `left`."""
    match operand:
        case RowOperand():
            space = operand.space
            if operand.space_field is not None:
                space = Space(left.pop(operand.space_field))
            assert space is not None
            return f"{SPACE_LETTER[space]}[{left.pop(operand.field)}]"
        case DramOperand():
            if operand.may_fill and left.pop("fill"):
                return ZERO
            return f"{program.arg_name(left.pop('arg'))}+{left.pop('offset')}"
        case SecondOperand():
            return _second(left)
        case RegisterOperand():
            return f"{REGISTER_LETTER}[{left.pop(operand.field)}]"
        case NumberOperand():
            return str(left.pop(operand.field))


def _second(left: dict[str, Any]) -> str:
    source = left.pop("source")
    if source is Source.IMM:
        return f"#{left.pop('imm')}"
    letter = REGISTER_LETTER if source is Source.REG else SPACE_LETTER[Space.ACC]
    return f"{letter}[{left.pop('s2')}]"


def _suffix(instruction: Instruction, program: Program) -> str:
    text = ""
    for word, numbers in (("wait", instruction.waits), ("post", instruction.posts)):
        if numbers:
            text += f" | {word} " + " ".join(program.semaphore_name(each) for each in numbers)
    return text
