"""What a function looks like from outside: its signature and its linker symbol.

Owns: the one translation from the IR's parameters to the artifact's, so that every backend gives the same signature.

Invariant: two modules of one function have equal signatures and symbols, whatever backend made them.
"""

from __future__ import annotations

from farm.artifact import ParamSpec, Signature
from farm.artifact.abi import ALLOWED_IMPORTS, is_public, private_symbol
from farm.errors import InvalidFunction
from farm.ir import Buffer, Function


def signature_of(function: Function) -> Signature:
    """Return the signature that a function's modules carry.

    Raises
    ------
    InvalidInput
        A parameter exceeds a limit of the artifact format, such as 4 GiB.
    """
    return Signature(
        tuple(
            ParamSpec(
                name=param.buffer.name,
                dtype=str(param.buffer.dtype),
                shape=param.buffer.shape,
                role=param.role.value,
                align_bytes=_explicit_alignment(param.buffer),
            )
            for param in function.params
        )
    )


def _explicit_alignment(buffer: Buffer) -> int:
    natural = buffer.align_bytes == buffer.dtype.size_bytes
    return 0 if natural else buffer.align_bytes


def symbol_of(function: Function) -> str:
    """Return the linker symbol of a function: its name, or the private form of it.

    Raises
    ------
    InvalidFunction
        The name belongs to the project or to the C library.
    """
    name = function.name
    if not is_public(name) or name in ALLOWED_IMPORTS:
        raise InvalidFunction(
            f"function {name}: reserved name; use one without two leading underscores that is none of "
            f"{', '.join(ALLOWED_IMPORTS)}"
        )
    return private_symbol(name) if function.private else name
