"""What every command shows: results, progress, errors, tables.

Owns: the two forms of output, and which stream gets what. Does not own: what is shown.

Invariant: standard output gets one result, or with JSON one error, a run; standard error gets the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
JSON_WORDS = ("-ojson", "--output=json")
_PRINTED = "farm.cli.output.printed"


class Steps(Protocol):
    """A progress display."""

    def say(self, line: str) -> None:
        """Show one line that stays."""
        ...

    def advance(self, done: int, total: int) -> None:
        """Show how much is done."""
        ...


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's result and progress go."""

    json: bool

    def result(self, value: Mapping[str, object], text: str) -> None:
        """Print the result: `value` as JSON, or `text` for people."""
        click.echo(to_json(value) if self.json else encodable(text, _encoding()))
        sys.stdout.flush()
        context = click.get_current_context(silent=True)
        if context is not None:
            context.meta[_PRINTED] = True

    @contextlib.contextmanager
    def steps(self, title: str) -> Iterator[Steps]:
        """Show progress on standard error: live on a terminal, plain lines otherwise."""
        if not sys.stderr.isatty():
            yield _Lines()
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield _Live(progress, progress.add_task(title, total=None))


class _Lines:
    def say(self, line: str) -> None:
        click.echo(line, err=True)

    def advance(self, done: int, total: int) -> None:
        """Show nothing: the lines tell it."""


class _Live:
    def __init__(self, progress: Any, task: Any) -> None:  # noqa: ANN401 - of rich, which is loaded late
        self._progress = progress
        self._task = task

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False)

    def advance(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)


@contextlib.contextmanager
def others_code() -> Iterator[None]:
    """Keep standard output for the result while code of others runs in this process, and what it starts."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def output_option(command: _Command) -> _Command:
    """Add ``-o/--output``, which arrives as the argument ``output``."""
    option = click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        callback=lambda context, param, value: Output(value == "json"),
        help="For people, or one JSON document on standard output.",
    )
    return option(command)


def wants_json(arguments: Sequence[str]) -> bool:
    """Tell whether a command line asks for JSON; it may be one that does not parse."""
    before = list(arguments)[: arguments.index("--")] if "--" in arguments else list(arguments)
    separate = any(
        pair in (("-o", "json"), ("--output", "json")) for pair in itertools.pairwise(before)
    )
    return separate or any(word in JSON_WORDS for word in before)


def has_result(context: click.Context | None) -> bool:
    """Tell whether a command printed its result already: an error after it is no second document."""
    return context is not None and bool(context.meta.get(_PRINTED))


def show_error(
    code: str, message: str, details: Mapping[str, str] | None = None, *, json: bool
) -> None:
    """Show an error: on standard error for people, and on standard output for programs."""
    if json:
        error = {"code": code, "message": message, "details": dict(details or {})}
        with contextlib.suppress(OSError):  # such as a full disk, which may be the error to show
            click.echo(to_json({"error": error}))
            return
    with contextlib.suppress(OSError):
        label = click.style("error:", fg="red", bold=True) if _has_colour() else "error:"
        click.echo(f"{label} {encodable(message)}", err=True)


def to_json(value: Mapping[str, object]) -> str:
    """Return one JSON document, indented; raises ValueError for a number that JSON cannot express.

    Letters are written as they are where standard output takes them, else as JSON's escapes.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(_encoding())
    except UnicodeEncodeError:  # another encoding, or a file's name that is no text
        return json.dumps(value, indent=2, allow_nan=False)
    return text


def encodable(text: str, encoding: str = "utf-8") -> str:
    """Return text with escapes for what cannot be encoded, such as bytes of a file's name that are no text."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns, never cut, so that other programs can read them too."""
    cells = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def size(size_bytes: int) -> str:
    """Return ``812 B``, ``1.5 KiB``, ``3.0 MiB``."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def seconds(value_s: float) -> str:
    """Return a time in the unit that reads best, with three or four digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value_s * factor >= 1:
            return f"{value_s * factor:.3f} {unit}"
    return f"{value_s * 1e9:.0f} ns"


def _has_colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
