"""The functions of build requests: those that came inside one, and the names of those that were read.

Owns: the bytes of small functions while requests need them, and what is remembered of functions' names.
Does not own: the store (`cas`), which keeps all other functions, or what is built (`builds`).

Invariant: bytes that are given are what their digest names; those that are held are at most `MAX_HELD_BYTES`, and what
came beyond that is in the store. Nothing here has to outlive the tracker: no build does.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from farm.api.v1 import ir_pb2
from farm.core.tasks import finish
from farm.errors import InvalidFunction, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from farm.core.digest import Digest
    from farm_tracker.cas import BlobStore

MISSING_SHOWN = 5
MAX_NAMES = 10_000
"""Functions whose names are remembered."""
MAX_HELD_BYTES = 64 << 20


@dataclass(slots=True)
class _Held:
    code: bytes
    requests: int


class Functions:
    """The functions of one tracker's builds."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._held: dict[Digest, _Held] = {}
        self._held_bytes = 0
        self._names: dict[Digest, tuple[str, bool]] = {}

    @contextlib.asynccontextmanager
    async def holding(
        self, codes: Mapping[Digest, bytes], named: Iterable[Digest]
    ) -> AsyncIterator[None]:
        """Hold functions that came with a request, while it is under way.

        Parameters
        ----------
        codes
            Checked: each is what its digest names.
        named
            All functions of the request; what others hold of them is held for this one too.

        Raises
        ------
        StoreFull
            Too much is held by other requests, and the store has no room either.
        """
        own = [it for it in dict.fromkeys((*codes, *named)) if self._hold(it, codes.get(it))]
        try:
            for digest, code in codes.items():
                if digest not in self._held:
                    await finish(asyncio.to_thread(self._blobs.put, code))
            yield
        finally:
            for digest in own:
                self._let_go(digest)

    def code_of(self, digest: Digest) -> bytes | None:
        """Return a function that an open request holds; None: it is in the store."""
        held = self._held.get(digest)
        return held.code if held else None

    def check(self, digests: Iterable[Digest]) -> None:
        """Raise NotFound if functions are neither held nor stored. Blocking."""
        missing = self._blobs.missing(it for it in digests if it not in self._held)
        if missing:
            shown = ", ".join(map(str, missing[:MISSING_SHOWN]))
            raise NotFound(
                f"build: {len(missing)} functions are not in the store ({shown}); send them first"
            )

    def named(self, digest: Digest, symbol: str, *, whole: bool) -> tuple[str, bool]:
        """Return a function's name, and whether it is private. Blocking.

        Parameters
        ----------
        symbol
            What whoever asked calls it.
        whole
            Read it, also if its name is known, to see that all of it is there.

        Raises
        ------
        InvalidFunction
            Its bytes are no function.
        NotFound, BlobCorrupt
            The store has lost it.
        """
        code = self.code_of(digest)
        found = self._names.get(digest) if code is not None or not whole else None
        if found is None:
            try:
                function = ir_pb2.Function.FromString(code or self._blobs.get(digest))
            except DecodeError as error:
                raise InvalidFunction(
                    f"function {symbol}: its blob is not a function ({error}); send one"
                ) from error
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            found = self._names[digest] = (function.name, function.private)
        return found

    def _hold(self, digest: Digest, code: bytes | None) -> bool:
        held = self._held.get(digest)
        if held is None:
            if code is None or self._held_bytes + len(code) > MAX_HELD_BYTES:
                return False
            held = self._held[digest] = _Held(code, 0)
            self._held_bytes += len(code)
        held.requests += 1
        return True

    def _let_go(self, digest: Digest) -> None:
        held = self._held[digest]
        held.requests -= 1
        if not held.requests:
            del self._held[digest]
            self._held_bytes -= len(held.code)
