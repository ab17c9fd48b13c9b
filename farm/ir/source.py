"""Bodies that are written in another language.

Owns: the node, its limits, what may be said to a C compiler. Does not own: compiling (`farm.codegen.llvm.foreign`), or
how a user's file declares functions (`farm.ir.declaration`).

Invariant: a `Source` that exists holds no option that names a file.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from farm.errors import InvalidFunction
from farm.ir.stmt import Stmt


class Language(enum.Enum):
    """What a `Source` is written in."""

    C = "c"
    LLVM = "llvm"  # LLVM IR, as text or bitcode


MAX_SOURCE_BYTES = 4 << 20
MAX_OPTIONS = 64
OPTION = re.compile(
    r"-[DU][A-Za-z_][A-Za-z0-9_]{0,62}(=[ -~]{0,256})?|-std=(c|gnu)(99|11|17|23)|-ffast-math|-fno-strict-aliasing|"
    r"-ffp-contract=(off|on|fast)"
)
"""What may be said to a C compiler: nothing that names a file."""


@dataclass(frozen=True, slots=True)
class Source(Stmt):
    """Code in another language, always the whole body of its function.

    It defines a function of the same name that returns nothing and takes the parameters in order: an array as a pointer
    to its first element, an input without extents by its value. It must stay inside its arrays, as nothing checks it.

    Attributes
    ----------
    options
        For the C compiler: ``-D``, ``-U``, ``-std=``, ``-ffast-math``, ``-ffp-contract=``, ``-fno-strict-aliasing``.
    """

    language: Language
    text: bytes
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < len(self.text) <= MAX_SOURCE_BYTES:
            raise InvalidFunction(f"source: {len(self.text)} bytes; use 1 to {MAX_SOURCE_BYTES}")
        if self.options and self.language is not Language.C:
            raise InvalidFunction(f"source: options for {self.language.value}; only C takes some")
        if len(self.options) > MAX_OPTIONS:
            raise InvalidFunction(f"source: {len(self.options)} options; use at most {MAX_OPTIONS}")
        for option in self.options:
            if not OPTION.fullmatch(option):
                raise InvalidFunction(
                    f"source: option {option[:80]!r}; use -DNAME, -DNAME=VALUE, -UNAME, -std=, -ffast-math, "
                    "-ffp-contract= or -fno-strict-aliasing"
                )
