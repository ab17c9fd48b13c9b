"""Assembly text as tokens, and errors that point into it.

Owns tokens and the form of syntax errors. Does not own grammar (`farm.ea.assembly`).

Invariant: every token knows its column, so every error names ``file:line:col`` and shows the line
with a caret under it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from farm.errors import InvalidProgram

_TOKEN = re.compile(
    r"(?P<SPACE>[ \t]+)|(?P<COMMENT>;.*)"
    r"|(?P<INTEGER>0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+(?![A-Za-z_0-9]))"
    r"|(?P<NAME>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)|(?P<DIRECTIVE>\.[a-z]+)"
    r"|(?P<PUNCTUATION><<|>>|[][(),+*/%|=#:-])"
)
_MAX_DIGITS = 24


class TokenKind(Enum):
    """What a token is."""

    INTEGER = auto()
    NAME = auto()
    DIRECTIVE = auto()
    PUNCTUATION = auto()
    END = auto()


SHOWN = 160
"""Letters of a line that an error shows."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of source, to report errors in."""

    file: str
    number: int
    text: str

    def error(self, column: int, what: str) -> InvalidProgram:
        """Return the error `what` at the zero-based `column`."""
        first = max(0, column - SHOWN // 2)
        shown = self.text[first : first + SHOWN].replace("\t", " ")
        return InvalidProgram(
            f"{self.file}:{self.number}:{column + 1}: {what}\n    {shown}\n    {' ' * (column - first)}^",
            file=self.file,
            line=str(self.number),
            column=str(column + 1),
        )


@dataclass(frozen=True, slots=True)
class Token:
    """A token and its zero-based column."""

    kind: TokenKind
    text: str
    column: int


def tokens_of(line: Line) -> Iterator[Token]:
    """Yield the tokens of `line`, then one END.

    Raises
    ------
    InvalidProgram
        A character or number that starts no token.
    """
    at = 0
    while at < len(line.text):
        match = _TOKEN.match(line.text, at)
        if match is None:
            raise line.error(at, f"unexpected {line.text[at]!r}; correct or remove it")
        if match.lastgroup == "COMMENT":
            break
        if match.lastgroup != "SPACE":
            kind = TokenKind[str(match.lastgroup)]
            if kind is TokenKind.INTEGER and len(match[0]) > _MAX_DIGITS:
                raise line.error(at, "number too long; no field is that wide")
            yield Token(kind, match[0], at)
        at = match.end()
    yield Token(TokenKind.END, "end of line", min(at, len(line.text)))
