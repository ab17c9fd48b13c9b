"""The linker symbol of a function, the same for every backend."""

from __future__ import annotations

import re

from farm.artifact.abi import ALLOWED_IMPORTS, is_public, private_symbol
from farm.errors import InvalidFunction
from farm.ir import Function
from farm.target import Target

_RESERVED = re.compile("_[A-Z]")


def symbol_of(function: Function, target: Target) -> str:
    """Return a function's name, or `farm.artifact.abi.private_symbol` of a private helper's.

    Raises
    ------
    InvalidFunction
        The name belongs to the project, to the C library or, as C says, to linkers (`_GLOBAL_OFFSET_TABLE_`).
    """
    name = function.name
    if not is_public(name) or name in ALLOWED_IMPORTS or _RESERVED.match(name):
        raise InvalidFunction(
            f"function {name}: reserved name; use one without two leading underscores, or one and a "
            f"capital, that is none of {', '.join(ALLOWED_IMPORTS)}"
        )
    return private_symbol(name, target.id) if function.private else name
