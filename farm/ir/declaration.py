"""Declarations: how a file in another language says what its functions take.

Owns: the form, and finding declarations in comments. Does not own: the code between them (`farm.ir.source`).

Invariant: ``parse_declaration(declaration_of(f))`` has f's name and parameters.

A declaration is a function's first line as it is printed, without ``func``; the role ``input`` may be left out::

    // farm: saxpy(a: float32, x: float32[1024], y: float32[1024] inout)

A parameter without extents is one number, passed by its value if it is an input; all others are pointers to their first
element.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from farm.core.files import read_regular
from farm.errors import InvalidFunction
from farm.ir.buffer import Buffer
from farm.ir.dtype import as_dtype
from farm.ir.function import Function, Param, Role
from farm.ir.printer import print_buffer
from farm.ir.source import Language, Source

_COMMENT = re.compile(r"(?://|;|/\*)\s*farm:\s*(?P<text>[^\n]*?)\s*(?:\*/)?\s*$", re.M)
_DECLARATION = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*\((?P<params>[^()]*)\)")
_PARAM = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*:\s*(?P<dtype>[a-z0-9]+)\s*(?:\[(?P<shape>[0-9,\s]*)\])?"
    r"(?:\s+align\s+(?P<align>[0-9]+))?(?:\s+(?P<role>input|output|inout))?"
)
_BETWEEN = re.compile(r",(?![^\[]*\])")
_FORM = "NAME(PARAM: DTYPE[EXTENTS] ROLE, ...), such as saxpy(a: float32, x: float32[64], y: float32[64] inout)"
_LANGUAGES = {".c": Language.C, ".ll": Language.LLVM, ".bc": Language.LLVM}
SUFFIXES = tuple(_LANGUAGES)


def read_source(
    path: Path | str, declarations: Sequence[str] = (), options: Sequence[str] = ()
) -> list[Function]:
    """Return the functions that a file of C or LLVM IR declares, ready to build; see `functions_of`."""
    path = Path(path)
    return functions_of(path.name, read_regular(path), declarations, options)


def functions_of(
    name: str, data: bytes, declarations: Sequence[str] = (), options: Sequence[str] = ()
) -> list[Function]:
    """Return the functions that a file of C (``.c``) or LLVM IR (``.ll``, ``.bc``) declares.

    Parameters
    ----------
    name
        The file's name; its suffix says the language.
    declarations
        Instead of those in the file's comments.
    options
        For the C compiler, as in `Source`.

    Raises
    ------
    InvalidFunction
        There is no declaration, or one is malformed.
    """
    suffix = PurePath(name).suffix
    if suffix not in _LANGUAGES:
        raise InvalidFunction(
            f"{name}: unknown language; use a name that ends with {', '.join(SUFFIXES)}"
        )
    found = list(declarations)
    if not found and suffix != ".bc":
        found = [match["text"] for match in _COMMENT.finditer(data.decode(errors="replace"))]
    if not found:
        comment = {".c": "// farm: ", ".ll": "; farm: "}.get(suffix)
        where = (
            f"add a comment `{comment}{_FORM}`, or pass it" if comment else f"pass it as {_FORM}"
        )
        raise InvalidFunction(f"{name}: no function is declared; {where}")
    body = Source(_LANGUAGES[suffix], data, tuple(options))
    return [Function(*parse_declaration(text), body) for text in dict.fromkeys(found)]


def parse_declaration(text: str) -> tuple[str, tuple[Param, ...]]:
    """Return name and parameters of a declaration; InvalidFunction says what is wrong with it."""
    match = _DECLARATION.fullmatch(text.strip())
    if not match:
        raise InvalidFunction(f"declaration: malformed ({text[:200]!r}); use {_FORM}")
    params = [_param(part) for part in _BETWEEN.split(match["params"])]
    return match["name"], tuple(params)


def declaration_of(function: Function) -> str:
    """Return the declaration of a function."""
    params = ", ".join(f"{print_buffer(p.buffer)} {p.role.value}" for p in function.params)
    return f"{function.name}({params})"


def _param(text: str) -> Param:
    match = _PARAM.fullmatch(text.strip())
    if not match:
        raise InvalidFunction(
            f"declaration: malformed parameter ({text.strip()[:200]!r}); use {_FORM}"
        )
    dtype = as_dtype(match["dtype"])
    shape = tuple(int(part) for part in (match["shape"] or "").split(",") if part.strip())
    align_bytes = int(match["align"] or dtype.size_bytes)
    return Param(Buffer(match["name"], dtype, shape, align_bytes), Role(match["role"] or "input"))
