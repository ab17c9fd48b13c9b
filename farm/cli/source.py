"""The user's file: run or read it, and find what it wants built.

Owns: running it, and errors that name its line. Does not own: the rules of a request (`farm.building`).

Invariant: what the file prints never reaches this process's standard output.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.building import Request
from farm.cli.output import others_code
from farm.errors import FarmError, InvalidInput
from farm.ir import Function
from farm.ir.declaration import SUFFIXES, read_source
from farm.target import Target

_HINT = "define `functions`, a list of what te.function returns, or `request`, as for farm.build"


def read_request(
    path: Path,
    targets: Sequence[str],
    declarations: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Request:
    """Run a Python file, or read one of C or LLVM IR, and return what it wants built.

    Parameters
    ----------
    targets
        If any: all of the file's functions for each of them.
    declarations, options
        As in `farm.ir.declaration.functions_of`, for files that are not Python.

    Raises
    ------
    InvalidInput
        The file fails (the message names the line), or defines nothing to build.
    InvalidTarget
        A target does not parse.
    """
    parsed = [Target.parse(text) for text in targets]
    if path.suffix in SUFFIXES:
        declared = read_source(path, declarations, options)
        return dict.fromkeys(parsed, declared) if parsed else declared
    if declarations or options:
        raise InvalidInput(
            f"{path}: --signature and --c-option are for files of {', '.join(SUFFIXES)}; drop them"
        )
    names = run_file(path)
    if ("functions" in names) == ("request" in names):
        both = "both" if "functions" in names else "neither"
        raise InvalidInput(f"{path}: defines {both} of `functions` and `request`; {_HINT}")
    if "functions" in names:
        functions = _functions(path, "functions", names["functions"])
        return dict.fromkeys(parsed, functions) if parsed else functions
    if parsed:
        raise InvalidInput(
            f"{path}: its `request` names targets itself; drop --target, or define `functions`"
        )
    return _request(path, names["request"])


def run_file(path: Path) -> dict[str, Any]:
    """Run a Python file as a script of its own folder, and return its names.

    Raises
    ------
    InvalidInput
        It failed; the message names the line and says why.
    FarmError
        The farm refused something in it: the same error, with the line.
    """
    try:
        with _as_script(path):
            return runpy.run_path(str(path), run_name="__farm__")
    except FarmError as error:
        error.message = f"{_place(path, error)}: {error.message}"
        error.args = (error.message,)
        raise
    except SyntaxError as error:
        where = f"{error.filename or path}:{error.lineno or 1}"
        raise InvalidInput(f"{where}: {error.msg}; correct the file") from error
    except SystemExit as error:
        raise InvalidInput(
            f"{_place(path, error)}: it exits ({error.code}); leave that out"
        ) from error
    except KeyboardInterrupt:  # the user's, not the file's
        raise
    except BaseException as error:
        what = f"{type(error).__name__}: {error}"
        raise InvalidInput(f"{_place(path, error)}: {what}; correct the file") from error


@contextlib.contextmanager
def _as_script(path: Path) -> Iterator[None]:
    """Let the file import its neighbours, and keep standard output for the result."""
    before, arguments = list(sys.path), list(sys.argv)
    sys.path.insert(0, str(path.parent.absolute()))
    sys.argv[:] = [str(path)]
    try:
        with others_code():
            yield
    finally:
        sys.path[:] = before
        sys.argv[:] = arguments


def _place(path: Path, error: BaseException) -> str:
    """Return ``FILE:LINE`` of the innermost frame in the file."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _functions(path: Path, what: str, value: object) -> list[Function]:
    if isinstance(value, Function):
        return [value]
    if not isinstance(value, list | tuple) or not all(isinstance(f, Function) for f in value):
        raise InvalidInput(f"{path}: `{what}` is not a list of functions; {_HINT}")
    return list(value)


def _request(path: Path, value: object) -> Request:
    if isinstance(value, Mapping):
        pairs: list[Any] = list(value.items())
    elif isinstance(value, list | tuple):
        pairs = list(value)
    else:
        return _functions(path, "request", value)
    if all(isinstance(pair, Function) for pair in pairs):
        return _functions(path, "request", pairs)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str | Target)):
            raise InvalidInput(f"{path}: `request` is no {{target: functions}}; {_HINT}")
    return [(target, _functions(path, f"request[{target}]", part)) for target, part in pairs]
