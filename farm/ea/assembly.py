"""Assembly text to programs.

Owns headers, labels, constants and what lines mean together; `farm.ea.parser` reads a line.

Invariant: what is returned can be encoded; every error names ``file:line:col``. Whether the program
is correct is for `farm.ea.verify`.

::

    .isa  1
    .mach ea16
    .args A[64*64], W, C        ; minimum length in bytes; left out: what the program touches
    .sem  full, ofull
    .equ  TILE 64
    start:                      ; a label is the index of the next instruction
    ld.s  s[0], A+0, rows=TILE cols=64 dstride=64 lstride=TILE      | post full
"""

from __future__ import annotations

from collections.abc import Callable

from farm.ea.config import CONFIGS, MachineConfig
from farm.ea.encoding import encode
from farm.ea.isa import ISA_VERSION, MAX_ARGS, MAX_SEMAPHORES, Instruction
from farm.ea.lexer import Line, Token, TokenKind
from farm.ea.parser import LineParser, Names
from farm.ea.program import Arg, Program, check_names, needed_bytes
from farm.errors import InvalidProgram

MAX_SOURCE_BYTES = 64 << 20


def assemble(text: str, file: str = "<text>", config: MachineConfig | None = None) -> Program:
    """Return the program that `text` describes.

    Parameters
    ----------
    file
        Name to show in errors.
    config
        Accept ``.mach`` with this configuration's name only; None accepts any known name.

    Raises
    ------
    InvalidProgram
        The first error, with file, line and column in the message and in ``details``.
    """
    if len(text) > MAX_SOURCE_BYTES:
        raise InvalidProgram(f"{file}: too long ({len(text)} characters); split it")
    lines = [Line(file, number, line) for number, line in enumerate(text.splitlines(), 1)]
    assembler = _Assembler({config.name: config} if config is not None else CONFIGS)
    assembler.collect(lines)
    return assembler.program(file)


class _Assembler:
    def __init__(self, configs: dict[str, MachineConfig]) -> None:
        self._configs = configs
        self._names = Names()
        self._config: MachineConfig | None = None
        self._version: int | None = None
        self._args: list[tuple[str, int | None]] = []
        self._semaphores: list[str] = []
        self._body: list[LineParser] = []

    def collect(self, lines: list[Line]) -> None:
        """Read headers and labels; keep the lines of instructions for when all are known."""
        for line in lines:
            parser = LineParser(line, self._names)
            label = parser.label()
            if label is not None:
                self._define(parser, label, len(self._body))
            if parser.next.kind is TokenKind.DIRECTIVE:
                self._directive(parser)
                parser.end()
            elif parser.next.kind is not TokenKind.END:
                self._body.append(parser)

    def program(self, file: str) -> Program:
        """Read the instructions and put all together."""
        if self._version is None or self._config is None:
            missing = ".isa" if self._version is None else ".mach"
            raise InvalidProgram(f"{file}: no {missing} header; add one")
        instructions = tuple(self._instruction(parser) for parser in self._body)
        needed = needed_bytes(instructions, len(self._args))
        args = tuple(
            Arg(name, need if length is None else length)
            for (name, length), need in zip(self._args, needed, strict=True)
        )
        return Program(self._config, args, tuple(self._semaphores), instructions)

    def _instruction(self, parser: LineParser) -> Instruction:
        start = parser.next
        instruction = parser.instruction()
        self._checked(parser, start, lambda: encode(instruction))
        return instruction

    def _define(self, parser: LineParser, token: Token, value: int) -> None:
        if token.text in self._names.values:
            parser.fail(f"{token.text!r} is defined twice; rename one", token)
        self._names.values[token.text] = value

    def _directive(self, parser: LineParser) -> None:
        token = parser.take()
        match token.text:
            case ".isa":
                self._version = parser.expression()
                if self._version != ISA_VERSION:
                    parser.fail(f"unknown version {self._version}; use {ISA_VERSION}", token)
            case ".mach":
                name = parser.name("a configuration")
                if name.text not in self._configs:
                    known = ", ".join(self._configs)
                    parser.fail(f"unknown configuration {name.text!r}; use {known}", name)
                self._config = self._configs[name.text]
            case ".args":
                self._each(parser, self._arg)
            case ".sem":
                self._each(parser, self._semaphore)
            case ".equ":
                name = parser.name("a name")
                self._define(parser, name, parser.expression())
            case _:
                parser.fail(
                    f"unknown header {token.text!r}; use .isa, .mach, .args, .sem, .equ", token
                )

    def _each(self, parser: LineParser, declare: Callable[[LineParser, Token], None]) -> None:
        while True:
            declare(parser, parser.name("a name"))
            parser.accept(",")
            if parser.next.kind is TokenKind.END:
                return

    def _arg(self, parser: LineParser, token: Token) -> None:
        length = None
        if parser.accept("["):
            length = parser.expression()
            parser.expect("]")
        self._args.append((token.text, length))
        names = [name for name, _ in self._args]
        self._checked(parser, token, lambda: check_names("argument", "arg", names, MAX_ARGS))
        self._names.args[token.text] = len(names) - 1

    def _semaphore(self, parser: LineParser, token: Token) -> None:
        names = [*self._semaphores, token.text]
        self._checked(parser, token, lambda: check_names("semaphore", "sem", names, MAX_SEMAPHORES))
        self._semaphores = names
        self._names.semaphores[token.text] = len(names) - 1

    def _checked(self, parser: LineParser, token: Token, rule: Callable[[], object]) -> None:
        """Report what `rule` refuses at `token`."""
        try:
            rule()
        except InvalidProgram as error:
            parser.fail(str(error), token)
