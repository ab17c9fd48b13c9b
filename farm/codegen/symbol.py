"""The linker symbol of a function, the same for every backend."""

from __future__ import annotations

from farm.artifact.abi import ALLOWED_IMPORTS, is_public, private_symbol
from farm.errors import InvalidFunction
from farm.ir import Function
from farm.target import Target


def symbol_of(function: Function, target: Target) -> str:
    """Return a function's name, or `farm.artifact.abi.private_symbol` of a private helper's.

    Raises
    ------
    InvalidFunction
        The name belongs to the project or to the C library.
    """
    name = function.name
    if not is_public(name) or name in ALLOWED_IMPORTS:
        raise InvalidFunction(
            f"function {name}: reserved name; use one without two leading underscores that is none "
            f"of {', '.join(ALLOWED_IMPORTS)}"
        )
    return private_symbol(name, target.id) if function.private else name
