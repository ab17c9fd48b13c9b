"""The grammar of one line of assembly: a cursor over tokens, expressions and operands.

Owns what may stand in a line. Does not own what lines mean together: headers, labels, programs
(`farm.ea.assembly`).

Invariant: reading is driven by the forms of `farm.ea.syntax` and the fields of `farm.ea.isa`; no
field name or width is repeated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from farm.ea.isa import Instruction, Source, Space
from farm.ea.lexer import Line, Token, TokenKind, tokens_of
from farm.ea.syntax import (
    FORMS,
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
)

_MAX_BITS = 64
_MAX_NESTING = 50
_SPACE_OF_LETTER = {letter: space for space, letter in SPACE_LETTER.items()}


class Names:
    """What names stand for: constants and labels, arguments, semaphores."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.args: dict[str, int] = {f"arg{index}": index for index in range(16)}
        self.semaphores: dict[str, int] = {f"sem{index}": index for index in range(15)}


class LineParser:
    """Reads one line."""

    def __init__(self, line: Line, names: Names) -> None:
        self.line = line
        self.names = names
        self._tokens = list(tokens_of(line))
        self._at = 0
        self._nesting = 0

    @property
    def next(self) -> Token:
        """The token to be read."""
        return self._tokens[self._at]

    def take(self) -> Token:
        """Read one token; END stays."""
        token = self.next
        self._at += token.kind is not TokenKind.END
        return token

    def fail(self, what: str, token: Token | None = None) -> NoReturn:
        """Raise `what` at `token`, by default at the next one."""
        raise self.line.error((token or self.next).column, what)

    def accept(self, text: str) -> bool:
        """Read punctuation `text` if it is next."""
        found = self.next.kind is TokenKind.PUNCTUATION and self.next.text == text
        self._at += found
        return found

    def expect(self, text: str) -> None:
        """Read punctuation `text`."""
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {self.next.text!r}; write {text!r} here")

    def name(self, what: str) -> Token:
        """Read a name."""
        if self.next.kind is not TokenKind.NAME:
            self.fail(f"expected {what}, found {self.next.text!r}; write {what} here")
        return self.take()

    def end(self) -> None:
        """Make sure that nothing is left."""
        if self.next.kind is not TokenKind.END:
            self.fail(f"unexpected {self.next.text!r}; expected the end of the line")

    def label(self) -> Token | None:
        """Read ``NAME:`` if the line starts with it."""
        if self._tokens[0].kind is TokenKind.NAME and self._tokens[1].text == ":":
            self._at = 2
            return self._tokens[0]
        return None

    def expression(self) -> int:
        """Read an integer expression: ``<< >>`` bind least, then ``+ -``, then ``* / %``."""
        return self._binary(("<<", ">>"), lambda: self._binary(("+", "-"), self._product))

    def _product(self) -> int:
        return self._binary(("*", "/", "%"), self._unary)

    def _binary(self, operators: tuple[str, ...], operand: Callable[[], int]) -> int:
        value = operand()
        while self.next.kind is TokenKind.PUNCTUATION and self.next.text in operators:
            operator = self.take()
            value = self._apply(operator, value, operand())
        return value

    def _apply(self, operator: Token, left: int, right: int) -> int:
        text = operator.text
        if text in "/%" and right == 0:
            self.fail("division by zero; use another divisor", operator)
        if text in ("<<", ">>") and not 0 <= right < _MAX_BITS:
            self.fail(f"shift by {right}; use 0 to {_MAX_BITS - 1}", operator)
        operations: dict[str, Callable[[], int]] = {
            "+": lambda: left + right,
            "-": lambda: left - right,
            "*": lambda: left * right,
            "/": lambda: left // right,
            "%": lambda: left % right,
            "<<": lambda: left << right,
            ">>": lambda: left >> right,
        }
        value = operations[text]()
        if value.bit_length() > _MAX_BITS:
            self.fail("value too large; no field is that wide", operator)
        return value

    def _unary(self) -> int:
        token = self.next
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            self.fail(f"nested deeper than {_MAX_NESTING}; write it in steps with .equ")
        if self.accept("-"):
            value = -self._unary()
        elif self.accept("("):
            value = self.expression()
            self.expect(")")
        elif token.kind is TokenKind.INTEGER:
            value = int(self.take().text, 0 if token.text[:2].lower() in ("0x", "0b") else 10)
        else:
            value = self._look_up(self.name("a number"), self.names.values, "name")
        self._nesting -= 1
        return value

    def _look_up(self, token: Token, known: Mapping[str, int], what: str) -> int:
        if token.text not in known:
            self.fail(f"unknown {what} {token.text!r}; define it", token)
        return known[token.text]

    def instruction(self) -> Instruction:
        """Read an instruction with its keywords and semaphores, up to the end of the line."""
        token = self.name("an instruction")
        form = FORMS.get(token.text)
        if form is None:
            near = [text for text in FORMS if text.split(".")[0] == token.text.split(".")[0]]
            self.fail(f"unknown instruction {token.text!r}; use {_listed(near or FORMS)}", token)
        values: dict[str, Any] = {}
        for index, operand in enumerate(form.operands):
            if index:
                self.expect(",")
            self._operand(operand, values)
        self.accept(",")
        self._keywords(form, values)
        for field in form.layout.fields:
            if field.name not in values and field.name not in form.implied:
                self.fail(f"missing {field.name}; write {field.name}=N", token)
        waits, posts = self._semaphores()
        self.end()
        typed = {**form.implied, **values}
        for field in form.layout.fields:
            if field.enum is not None:
                typed[field.name] = field.enum(typed[field.name])
        return form.layout.kind(waits=waits, posts=posts, **typed)

    def _keywords(self, form: Form, values: dict[str, Any]) -> None:
        fields = {field.name: field for field in form.layout.fields}
        while self.next.kind is TokenKind.NAME:
            token = self.take()
            if token.text in values:
                self.fail(f"{token.text} given twice; drop one", token)
            if token.text in form.flags:
                values[token.text] = True
                continue
            if token.text not in fields:
                known = [name for name in (*fields, *form.flags) if name not in values]
                self.fail(f"unknown keyword {token.text!r}; use {_listed(known)}", token)
            self.expect("=")
            field = fields[token.text]
            values[token.text] = self._in_range(field.legal, field.low, field.high)
            self.accept(",")

    def _in_range(self, legal: Callable[[int], bool], low: int, high: int) -> int:
        start = self.next
        value = self.expression()
        if not legal(value):
            self.fail(f"{value} does not fit; use {low} to {high}", start)
        return value

    def _operand(self, operand: Operand, values: dict[str, Any]) -> None:
        match operand:
            case RowOperand():
                spaces = list(Space) if operand.space is None else [operand.space]
                letters = [SPACE_LETTER[space] for space in spaces]
                letter, values[operand.field] = self._indexed(letters)
                if operand.space_field is not None:
                    values[operand.space_field] = _SPACE_OF_LETTER[letter]
            case DramOperand():
                self._dram(operand, values)
            case SecondOperand():
                self._second(values)
            case RegisterOperand():
                _, values[operand.field] = self._indexed([REGISTER_LETTER])
            case NumberOperand():
                values[operand.field] = self.expression()

    def _indexed(self, letters: list[str]) -> tuple[str, int]:
        what = " or ".join(f"{letter}[...]" for letter in letters)
        token = self.name(what)
        if token.text not in letters:
            self.fail(f"expected {what}, found {token.text!r}; write {what} here", token)
        self.expect("[")
        value = self.expression()
        self.expect("]")
        return token.text, value

    def _dram(self, operand: DramOperand, values: dict[str, Any]) -> None:
        token = self.name("an argument")
        if operand.may_fill and token.text == ZERO:
            values["fill"] = True
            return
        values["arg"] = self._look_up(token, self.names.args, "argument")
        values["offset"] = self.expression() if self.accept("+") else 0

    def _second(self, values: dict[str, Any]) -> None:
        if self.accept("#"):
            values["source"], values["imm"] = Source.IMM, self.expression()
            return
        letter, values["s2"] = self._indexed([SPACE_LETTER[Space.ACC], REGISTER_LETTER])
        values["source"] = Source.REG if letter == REGISTER_LETTER else Source.ROW

    def _semaphores(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        found: dict[str, list[int]] = {"wait": [], "post": []}
        while self.accept("|"):
            word = self.name("'wait' or 'post'")
            if word.text not in found:
                self.fail(f"expected 'wait' or 'post', found {word.text!r}; write one", word)
            numbers = found[word.text]
            while True:
                token = self.name("a semaphore")
                if len(numbers) == 2:
                    self.fail(f"more than two to {word.text}; add a sync", token)
                numbers.append(self._look_up(token, self.names.semaphores, "semaphore"))
                self.accept(",")
                if self.next.kind is not TokenKind.NAME:
                    break
        return tuple(found["wait"]), tuple(found["post"])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
