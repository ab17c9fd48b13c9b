"""The build coordinator: from a request to one artifact.

Owns: what the build cache answers, the progress that a client sees, merging modules into the artifact.
Does not own: which agent builds what (`state.builds`), or the artifact's format (`farm.artifact`).

Invariant: the artifact depends on the modules alone, never on who built them, in what order, or whether they were
cached; a request that ends early ends its own work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field, replace
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Any, cast

from farm.artifact import BuiltModule, Signature, abi, assemble
from farm.core.ids import JobId
from farm.core.limits import MAX_INLINE_RESULT_BYTES
from farm.errors import (
    Cancelled,
    FarmError,
    InfrastructureError,
    InvalidFunction,
    NotFound,
)
from farm_tracker.crash_points import POINTS
from farm_tracker.functions import Functions
from farm_tracker.state.builds import as_failure, check_builders
from farm_tracker.state.commands import JobEnded, UnitChanged
from farm_tracker.state.events import BuildCancelled, BuildMerged, BuildSubmitted
from farm_tracker.state.model import Observed
from farm_tracker.state.state import Draft
from farm_tracker.state.work import Failure, JobState, UnitId, UnitState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from farm.artifact.module import Kind
    from farm.core.digest import Digest
    from farm_tracker.cas import BlobStore
    from farm_tracker.requests import BuildRequest
    from farm_tracker.state.work import CacheEntry, Module, UnitSpec
    from farm_tracker.tracker import Tracker

log = logging.getLogger(__name__)


@unique
class ItemState(StrEnum):
    """How far an item is, as its client sees it."""

    QUEUED = "QUEUED"
    BUILDING = "BUILDING"
    DONE = "DONE"
    FAILED = "FAILED"


_STATES = {
    UnitState.QUEUED: ItemState.QUEUED,
    UnitState.DELAYED: ItemState.QUEUED,
    UnitState.BUILDING: ItemState.BUILDING,
    UnitState.DONE: ItemState.DONE,
    UnitState.FAILED: ItemState.FAILED,
    UnitState.CANCELLED: ItemState.FAILED,
}


@dataclass(frozen=True, slots=True)
class ItemNews:
    """How far the item at `index` of the request is."""

    index: int
    state: ItemState
    agent_id: str = ""
    seconds: float = 0.0
    failure: Failure | None = None
    cached: bool = False


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The end of a build: the artifact, unless an item failed; `data` is its bytes if they are few, else empty."""

    artifact: Digest | None
    items: tuple[ItemNews, ...]
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class BuildNews:
    """What happened to items since the last news, and in the last news the end."""

    items: tuple[ItemNews, ...]
    result: BuildResult | None = None


@dataclass(slots=True, eq=False)
class _Build:
    """One request under way: the last news and the module of each item."""

    request: BuildRequest
    symbols: list[str]
    news: list[ItemNews] = field(default_factory=list)
    modules: dict[int, Module] = field(default_factory=dict)
    indices: dict[UnitSpec, int] = field(default_factory=dict)

    def take(self, change: UnitChanged) -> ItemNews | None:
        """Note what happened to a unit; None if the client knows that already."""
        unit = change.unit
        index = self.indices[unit.spec]
        news = ItemNews(
            index, _STATES[unit.state], str(unit.agent_id or ""), unit.seconds, unit.failure
        )
        if news == self.news[index] or self.news[index].state in (ItemState.DONE, ItemState.FAILED):
            return None
        self.news[index] = news
        if unit.module is not None:
            self.modules[index] = unit.module
        return news


class Builds:
    """Coordinates the build requests of one tracker."""

    def __init__(self, tracker: Tracker, blobs: BlobStore) -> None:
        self._tracker = tracker
        self._blobs = blobs
        self._open: set[_Build] = set()
        self.functions = Functions(blobs)

    def needed(self) -> set[Digest]:
        """Return the blobs of the builds under way: functions, and the modules that they have so far."""
        found: set[Digest] = set()
        for build in list(self._open):
            found.update(it.function for it in build.request.items)
            found.update(it.object for it in list(build.modules.values()))
        return found

    async def build(self, request: BuildRequest) -> AsyncGenerator[BuildNews, None]:
        """Yield what happens to the items; the last news has the result.

        Raises
        ------
        NotFound
            A function neither came with the request nor is in the store.
        InvalidFunction
            A function's blob is not a function of the item's name.
        NobodyCanServe
            No agent builds one of the targets.
        StoreFull
            There is no room for the functions that came with the request.
        InfrastructureError
            The modules could not be merged, since the store lost one.
        """
        named = [it.function for it in request.items]
        async with self.functions.holding(request.codes, named):
            cached = await self._cached(request.items)
            symbols = await asyncio.to_thread(self._check_functions, request.items, cached)
            build = _Build(request, symbols)
            self._open.add(build)
            try:
                async with contextlib.aclosing(self._go_on(build, cached)) as events:
                    async for event in events:
                        yield event
            finally:
                self._open.discard(build)

    async def _go_on(
        self, build: _Build, cached: Mapping[UnitSpec, CacheEntry]
    ) -> AsyncGenerator[BuildNews, None]:
        request = build.request
        for index, spec in enumerate(request.items):
            entry = cached.get(spec)
            build.indices[spec] = index
            if entry is not None:
                build.modules[index] = entry.module
            state = ItemState.DONE if entry else ItemState.QUEUED
            build.news.append(ItemNews(index, state, cached=entry is not None))
        check_builders(
            Draft(self._tracker.state, self._tracker.clock.now()),
            {spec.family for spec in request.items if spec not in cached},
        )
        wanted = [spec for spec in request.items if spec not in cached]
        if not wanted:  # the result says it of every item
            yield BuildNews((), await self._merge(build))
            return
        async with contextlib.aclosing(self._compile(build, wanted)) as events:
            async for event in events:
                yield event

    async def _compile(
        self, build: _Build, wanted: list[UnitSpec]
    ) -> AsyncGenerator[BuildNews, None]:
        job_id = JobId(self._tracker.ids("build"))
        news = self._tracker.watch(job_id)
        ended: JobEnded | None = None
        told = list(build.news)
        try:
            await self._tracker.post(self._submission(job_id, build.request, wanted))
            while ended is None:
                for change in await self._next(job_id, news):
                    if isinstance(change, JobEnded):
                        ended = change
                        break
                    shown = build.take(change)
                    if shown is not None:
                        told.append(shown)
                if ended is None and told:
                    yield BuildNews(tuple(told))
                    told = []
            if ended.state is JobState.BUILDING:
                result = await self._merge_job(job_id, build)
            else:
                result = BuildResult(None, _all_ended(build, ended.cause))
            yield BuildNews(tuple(told), result)
        finally:
            self._tracker.unwatch(job_id)
            if ended is None:
                self._tracker.post_last(BuildCancelled(job_id))

    async def _next(
        self, job_id: JobId, news: asyncio.Queue[UnitChanged | JobEnded]
    ) -> list[UnitChanged | JobEnded]:
        """Wait for news of a job, or for the tracker's own end; return all that there is."""
        getter = asyncio.ensure_future(news.get())
        try:
            ends: set[asyncio.Future[Any]] = {getter, self._tracker.ending}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not getter.done():
                raise self._tracker.ending.result()
            found = [getter.result()]
        finally:
            getter.cancel()
        while not news.empty():
            found.append(news.get_nowait())
        return found

    def _submission(
        self, job_id: JobId, request: BuildRequest, wanted: Sequence[UnitSpec]
    ) -> BuildSubmitted:
        units = tuple((UnitId(self._tracker.ids("unit")), spec) for spec in wanted)
        return BuildSubmitted(
            job_id, request.request_key, request.target_host, units, request.keep_going
        )

    def _check_functions(
        self, items: Sequence[UnitSpec], cached: Mapping[UnitSpec, CacheEntry]
    ) -> list[str]:
        """Return the linker symbol of each item's function. Blocking."""
        self.functions.check(dict.fromkeys(item.function for item in items))
        return [self._symbol(item, is_cached=item in cached) for item in items]

    def _symbol(self, item: UnitSpec, *, is_cached: bool) -> str:
        # One that will be compiled is read, to see it whole.
        name, is_private = self.functions.named(item.function, item.symbol, whole=not is_cached)
        if name != item.symbol:
            raise InvalidFunction(
                f"function {item.symbol}: its blob holds {name[:80]!r}; name it so"
            )
        return abi.private_symbol(name, item.target_id) if is_private else name

    async def _cached(self, items: Sequence[UnitSpec]) -> dict[UnitSpec, CacheEntry]:
        """Return what need not be compiled: built by what the farm would build it with now, and complete."""
        found = await self._tracker.lookup(items)
        fresh = [entry for entry in found if self._is_current(entry)]
        objects = dict.fromkeys(it.module.object for it in fresh)
        whole = await asyncio.to_thread(lambda: set(filter(self._blobs.holds, objects)))
        chosen: dict[UnitSpec, CacheEntry] = {}
        for entry in fresh:
            if entry.module.object in whole:
                chosen.setdefault(entry.spec, entry)
        return chosen

    def _is_current(self, entry: CacheEntry) -> bool:
        """Tell whether an agent that is there would build it with the same version and compiler."""
        family = entry.spec.family
        builders = [
            agent
            for agent in self._tracker.state.agents.values()
            if family in agent.builds and agent.observed in (Observed.ONLINE, Observed.SUSPECT)
        ]
        return any(
            agent.version == entry.builder_version
            and agent.toolchains.get(family, entry.module.toolchain) == entry.module.toolchain
            for agent in builders
        )

    async def _merge_job(self, job_id: JobId, build: _Build) -> BuildResult:
        try:
            result = await self._merge(build)
        except FarmError as error:
            await self._tracker.post(BuildMerged(job_id, None, error.message))
            raise
        await self._tracker.post(BuildMerged(job_id, result.artifact))
        return result

    async def _merge(self, build: _Build) -> BuildResult:
        result = await asyncio.to_thread(self._assemble, build)
        log.info("merged request_key=%r artifact=%s", build.request.request_key, result.artifact)
        return result

    def _assemble(self, build: _Build) -> BuildResult:
        """Put the modules together and store the artifact. Blocking."""
        POINTS.passed("merge.begun")
        modules = [
            self._built(spec, symbol, build.modules[index])
            for index, (spec, symbol) in enumerate(
                zip(build.request.items, build.symbols, strict=True)
            )
        ]
        data = assemble(build.request.target_host, modules).to_bytes()
        artifact = self._blobs.put(data)
        POINTS.passed("merge.stored")
        shown = data if len(data) <= MAX_INLINE_RESULT_BYTES else b""
        return BuildResult(artifact, tuple(build.news), shown)

    def _built(self, spec: UnitSpec, symbol: str, module: Module) -> BuiltModule:
        try:
            data = self._blobs.get(module.object)
        except NotFound as error:
            raise InfrastructureError(
                f"{spec.symbol}: the store lost its object ({module.object}); build again"
            ) from error
        return BuiltModule(
            kind=cast("Kind", str(spec.kind)),
            symbol=symbol,
            target=spec.target,
            format=module.format,
            format_version=module.format_version,
            requires=module.requires,
            toolchain=module.toolchain,
            signature=Signature.from_json(module.signature),
            data=data,
        )


def _all_ended(build: _Build, cause: str) -> tuple[ItemNews, ...]:
    """Return the last news of each item of a job that failed; what did not end was given up."""
    given_up = as_failure(Cancelled(f"build: given up, {cause}; build again"))
    return tuple(
        it
        if it.state in (ItemState.DONE, ItemState.FAILED)
        else replace(it, state=ItemState.FAILED, failure=given_up)
        for it in build.news
    )
