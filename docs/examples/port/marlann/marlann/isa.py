"""Instructions of 32 bits: their fields, their text, and back.

Written from the published description (SymbioticEDA/MARLANN, docs/isa.md). Every instruction has its opcode in bits
5..0; operands are MADDR (bits 31..15), LEN (24..15), CADDR and ARG (14..6). Unused bits are zero, and anything else is
no instruction. The table of the description gives MMAXN two CADDR, its text says that it is like MMAX: here it has
MADDR and CADDR.
"""

from dataclasses import dataclass

from farm.errors import InvalidProgram

BITS = {"maddr": (15, 17), "len": (15, 10), "caddr": (6, 9), "arg": (6, 9)}
"""First bit and width of each operand."""

_ARITHMETIC = {
    "Save": 24,
    "LdSet": 28,
    "LdAdd": 32,
    "LdMax": 36,
}
FORMS: dict[str, tuple[int, tuple[str, ...]]] = {
    "Sync": (0, ()),
    "Call": (1, ("maddr",)),
    "Return": (2, ()),
    "Execute": (3, ("caddr", "len")),
    "LoadCode": (4, ("maddr", "caddr")),
    "LoadCoeff0": (5, ("maddr", "caddr")),
    "LoadCoeff1": (6, ("maddr", "caddr")),
    "ContinueLoad": (7, ("arg",)),
    "SetLBP": (8, ("maddr",)),
    "AddLBP": (9, ("maddr",)),
    "SetSBP": (10, ("maddr",)),
    "AddSBP": (11, ("maddr",)),
    "SetCBP": (12, ("caddr",)),
    "AddCBP": (13, ("caddr",)),
    **{f"Store{n}": (16 + i, ("maddr", "arg")) for i, n in enumerate(("", "0", "1"))},
    **{f"ReLU{n}": (20 + i, ("maddr", "arg")) for i, n in enumerate(("", "0", "1"))},
    **{
        f"{name}{n}": (first + i, ("maddr",))
        for name, first in _ARITHMETIC.items()
        for i, n in enumerate(("", "0", "1"))
    },
    "MACC": (40, ("maddr", "caddr")),
    "MMAX": (41, ("maddr", "caddr")),
    "MACCZ": (42, ("maddr", "caddr")),
    "MMAXZ": (43, ("maddr", "caddr")),
    "MMAXN": (45, ("maddr", "caddr")),
}
"""Opcode and operands of each instruction, operands in the order of the text."""

NAMES = {opcode: name for name, (opcode, _) in FORMS.items()}
SEQUENCER = frozenset(name for name, (opcode, _) in FORMS.items() if opcode < 8)
"""Instructions that only the sequencer runs, from main memory."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name and its operands in the order of the text."""

    name: str
    operands: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the text."""
        return f"{self.name} {', '.join(map(str, self.operands))}".strip()

    def operand(self, field: str) -> int:
        """Return an operand by its field, 0 if the instruction has none such."""
        fields = FORMS[self.name][1]
        return self.operands[fields.index(field)] if field in fields else 0


def encode(instruction: Instruction) -> int:
    """Return the word of an instruction; raises InvalidProgram for an operand that does not fit."""
    if instruction.name not in FORMS:
        raise InvalidProgram(
            f"marlann: no instruction {instruction.name[:40]!r}; there is {', '.join(FORMS)}"
        )
    opcode, fields = FORMS[instruction.name]
    if len(instruction.operands) != len(fields):
        raise InvalidProgram(f"marlann: {instruction}: give {', '.join(fields) or 'no operands'}")
    word = opcode
    for field, value in zip(fields, instruction.operands, strict=True):
        first, width = BITS[field]
        if not 0 <= value < 1 << width or (field == "len" and value > 512):
            raise InvalidProgram(
                f"marlann: {instruction}: {field} {value} does not fit; use 0 to {(1 << width) - 1}"
            )
        word |= value << first
    return word


def decode(word: int) -> Instruction:
    """Return the instruction of a word; raises InvalidProgram if it is none, also for unused bits that are set."""
    name = NAMES.get(word & 63)
    if name is not None:
        fields = FORMS[name][1]
        operands = tuple(word >> BITS[field][0] & (1 << BITS[field][1]) - 1 for field in fields)
        found = Instruction(name, operands)
        if not ("len" in fields and found.operand("len") > 512) and encode(found) == word:
            return found
    raise InvalidProgram(f"marlann: {word:#010x} is no instruction (opcode {word & 63})")


def assemble(text: str) -> list[int]:
    """Return the words of a text, one instruction a line; ``;`` begins a comment, numbers as in Python."""
    words = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition(";")[0].strip()
        if not code:
            continue
        name, _, rest = code.partition(" ")
        try:
            operands = tuple(int(each, 0) for each in rest.split(",")) if rest.strip() else ()
            words.append(encode(Instruction(name, operands)))
        except ValueError as error:
            raise InvalidProgram(
                f"marlann: line {number}: {code[:60]!r}: {error}; use numbers"
            ) from error
    return words


def disassemble(words: list[int]) -> str:
    """Return the text of words, one instruction a line."""
    return "".join(f"{decode(word)}\n" for word in words)
