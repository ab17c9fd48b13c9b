"""Build requests: what a client asks for, checked.

Owns: the limits and rules that a request must keep before any work starts. Does not own: messages (`service.build`)
or building (`builds`).

Invariant: a `BuildRequest` that exists has unique items with canonical targets.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farm.core.digest import digest_of
from farm.core.limits import (
    MAX_INLINE_FUNCTION_BYTES,
    MAX_INLINE_FUNCTIONS_BYTES,
    MAX_KEY_BYTES,
)
from farm.errors import DuplicateSymbol, InvalidInput, InvalidTarget
from farm.target import Target
from farm_tracker.state.work import ItemKind, UnitSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from farm.core.digest import Digest

MAX_ITEMS = 4096
MAX_FUNCTION_BYTES = 4 << 20
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Everything to build for one artifact, in the client's order; `codes` are functions that came with it."""

    request_key: str
    target_host: str
    items: tuple[UnitSpec, ...]
    keep_going: bool
    codes: Mapping[Digest, bytes] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.request_key.encode()) > MAX_KEY_BYTES:
            raise InvalidInput(f"build: request_key over {MAX_KEY_BYTES} bytes; shorten it")
        if not 1 <= len(self.items) <= MAX_ITEMS:
            raise InvalidInput(f"build: {len(self.items)} items; send 1 to {MAX_ITEMS}")
        if canonical(self.target_host).is_accelerator:
            raise InvalidTarget(
                f"build: target_host is an accelerator ({self.target_host}); pass a CPU"
            )
        seen: set[tuple[str, str, str]] = set()
        for item in self.items:
            key = (item.kind, item.target_id, item.symbol)
            if key in seen:
                raise DuplicateSymbol(
                    f"build: {item.symbol} for {item.target} ({item.kind}) is listed twice; list it once"
                )
            seen.add(key)
            if item.kind is ItemKind.HOST and item.target != self.target_host:
                raise InvalidTarget(
                    f"build: host item {item.symbol} is for {item.target}, not for target_host "
                    f"({self.target_host}); host items are compiled for target_host"
                )


def item(kind: ItemKind, target: str, symbol: str, function: Digest) -> UnitSpec:
    """Return one item, checked by itself.

    Raises
    ------
    InvalidTarget, InvalidInput
        The target is unknown or not in canonical form, the symbol malformed, the function too large.
    """
    parsed = canonical(target)
    if not _SYMBOL.fullmatch(symbol):
        raise InvalidInput(f"build: malformed symbol ({symbol[:80]!r}); use a C identifier")
    if function.size_bytes > MAX_FUNCTION_BYTES:
        raise InvalidInput(
            f"build: function {symbol} has {function.size_bytes} bytes; at most {MAX_FUNCTION_BYTES}"
        )
    return UnitSpec(kind, target, parsed.id, parsed.family, symbol, function)


def codes_of(items: Iterable[tuple[UnitSpec, bytes]]) -> dict[Digest, bytes]:
    """Return the functions that came with a request's items, checked.

    Raises
    ------
    InvalidInput
        One is too large, or not what its item names; or all together are too large.
    """
    codes: dict[Digest, bytes] = {}
    for spec, code in items:
        if not code or spec.function in codes:
            continue
        if len(code) > MAX_INLINE_FUNCTION_BYTES or digest_of(code) != spec.function:
            raise InvalidInput(
                f"build: function {spec.symbol}, {len(code)} bytes with the request, is too large or not what its "
                f"item names; store functions above {MAX_INLINE_FUNCTION_BYTES} bytes"
            )
        codes[spec.function] = code
    size_bytes = sum(map(len, codes.values()))
    if size_bytes > MAX_INLINE_FUNCTIONS_BYTES:
        raise InvalidInput(
            f"build: {size_bytes} bytes of functions with one request; at most "
            f"{MAX_INLINE_FUNCTIONS_BYTES}, store the others"
        )
    return codes


@functools.lru_cache(maxsize=256)
def canonical(text: str) -> Target:
    """Return the target of a canonical text; raises InvalidTarget for another form.

    A default, such as "this machine", would mean the tracker's machine here instead of the client's.
    """
    target = Target.parse(text, foreign=True)
    if str(target) != text:
        raise InvalidTarget(f"target: not in canonical form ({text!r}); send {str(target)!r}")
    return target
