"""What an artifact has for which device: the ways to run one of its functions.

Owns: reading that from artifacts in the store, each once. Does not own: which device is chosen (`state`), or the choice
among variants, which is the device's (`farm.artifact.choose`).

Invariant: a device that fits none of the variants would refuse the function; nothing of an artifact is executed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from farm.artifact import Artifact
from farm.artifact.abi import is_public
from farm.errors import InvalidTarget, NotFound, NoVariant
from farm.target import Target
from farm_tracker.state.demand import Variant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farm.artifact import Section
    from farm.core.digest import Digest
    from farm_tracker.cas import BlobStore

    Outline = Mapping[str, tuple[Variant, ...]]

KEPT = 256
SHOWN = 8


class Variants:
    """The variants of the artifacts of one store; the last few hundred are kept in memory."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._known: OrderedDict[Digest, Outline] = OrderedDict()
        self._reading = asyncio.Lock()  # an artifact may be large: one at a time in memory

    async def of(self, artifact: Digest, symbol: str) -> tuple[Variant, ...]:
        """Return the ways to run a function.

        Raises
        ------
        NotFound
            The artifact is not in the store, or has no such function.
        NoVariant
            It was built for targets that are unknown here.
        BlobCorrupt, ArtifactError
            It is damaged, or no artifact.
        """
        outline = self._known.get(artifact)
        if outline is None:
            async with self._reading:
                outline = self._known.get(artifact)
                if outline is None:
                    outline = await asyncio.to_thread(self._read, artifact)
            self._known[artifact] = outline
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(artifact)
        found = outline.get(symbol)
        if found is None:
            public = sorted(filter(is_public, outline))
            more = f" and {len(public) - SHOWN} more" if len(public) > SHOWN else ""
            raise NotFound(
                f"function {symbol[:80]}: not in this artifact; it has "
                f"{', '.join(public[:SHOWN]) or 'none'}{more}"
            )
        if not found:
            raise NoVariant(
                f"function {symbol}: built for targets that this farm does not know; update the tracker, or "
                "build it again"
            )
        return found

    def _read(self, artifact: Digest) -> Outline:
        return outline_of(Artifact.from_bytes(self._blobs.get(artifact)))


def outline_of(artifact: Artifact) -> Outline:
    """Return the variants of each public function of an artifact."""
    outline: dict[str, tuple[Variant, ...]] = {}
    hosts: dict[str, list[Section]] = {}
    for section in artifact.sections:
        if section.kind == "host":
            hosts.setdefault(section.symbol, []).append(section)
    for symbol in filter(is_public, artifact.symbols):
        outline[symbol] = ()
    for section in artifact.sections:
        if section.kind == "device" and section.symbol in outline:
            outline[section.symbol] += tuple(_variants(section, hosts.get(section.symbol, [])))
    return outline


def _variants(section: Section, hosts: list[Section]) -> list[Variant]:
    try:
        target = Target.parse(section.target, foreign=True)
    except InvalidTarget:
        return []  # of a newer version: no device of this farm runs it
    if target.id != section.target_id:
        return []
    stubs: list[tuple[str, ...]] = [it.requires for it in hosts] if target.is_accelerator else [()]
    return [
        Variant(section.target, target.family, tuple(sorted({*section.requires, *stub})))
        for stub in stubs
    ]
