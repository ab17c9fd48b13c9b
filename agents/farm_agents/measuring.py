"""Measures and comparisons of one session, on the agent's side.

Owns: a worker for each candidate, what its end means, the best so far, the core, and times that cannot be true.
Does not own: taking samples (`farm_agents.worker`), the reference (`reference`), what clients may ask for (`requests`).

Invariant: a candidate's process is used for nothing else, and is on its way out before the next one begins. What the
reference gives comes from a process of its own that no candidate can reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from farm.api.v1 import device_pb2, measure_pb2, session_pb2
from farm.errors import (
    FarmError,
    KernelCrashed,
    KernelFailed,
    TimeLimit,
)
from farm.measuring import Comparison, Measurement, Options, Samples, Status
from farm.measuring.checks import blobs_named, check_compare, check_subject, check_workload
from farm.measuring.comparison import compared
from farm.measuring.values import DEFAULT_ROUNDS, DEFAULT_THRESHOLD
from farm.measuring.wire import (
    comparison_from_proto,
    comparison_to_proto,
    measurement_from_proto,
    measurement_to_proto,
    options_from_proto,
)
from farm_agents.cache import BlobCache
from farm_agents.child import Child
from farm_agents.cores import claim_core
from farm_agents.device import LocalDevice
from farm_agents.drivers.lock import DeviceLock
from farm_agents.fingerprint import Facts, host_facts, host_name
from farm_agents.reference import Reference, Unusable
from farm_agents.session_worker import SessionWorker, raise_error
from farm_agents.worker.processes import cpu_time_s

COMPARE_PROCESSES = 2
"""In which the rounds of a comparison are run: how a process happens to lie in memory is no merit."""
LONGEST_INCUMBENT = 1e15
"""In ns or cycles; more than ten days is nothing to race against."""
CPU_FACTOR, CPU_SLACK_S = 1.25, 0.05
"""More CPU time than this, compared with the time that has passed by its own clock, one thread cannot have used."""


@dataclass(slots=True)
class Measuring:
    """What one session measures.

    Attributes
    ----------
    crashed
        Whether a candidate ended its process, or was killed at a limit.
    used
        Whether anything was measured, so that there is a folder.
    """

    device: LocalDevice
    cache: BlobCache
    folder: Path
    log: Path
    crashed: bool = False
    used: bool = False
    _best: dict[bytes, float] = field(default_factory=dict)
    _reference: Reference = field(init=False)
    _core: tuple[int, DeviceLock] | None = None
    _workers: set[SessionWorker] = field(default_factory=set)
    _ending: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._reference = Reference(self.cache)

    async def measure(self, request: measure_pb2.MeasureRequest) -> measure_pb2.Measurement:
        """Measure one candidate; what it does wrong is in what is returned.

        Raises
        ------
        InvalidInput
            The request is malformed, or its reference does not run.
        InfrastructureError
            The farm failed.
        """
        options = options_from_proto(request.options)
        check_subject(request.subject)
        check_workload(request.workload)
        return measurement_to_proto(await self._measure(request, options, race=not request.unraced))

    async def compare(self, request: measure_pb2.CompareRequest) -> measure_pb2.Comparison:
        """Compare candidates: each is checked alone first; what it does wrong is in what is returned.

        Raises as `measure`.
        """
        options = options_from_proto(request.options)
        check_compare(request)
        try:
            async with asyncio.timeout(options.limit_s):
                await self.cache.fetch_all(blobs_named(request.subjects, request.workload))
                return comparison_to_proto(await self._compare(request, options))
        except TimeoutError:
            raise TimeLimit(
                f"compare: not over after its limit ({options.limit_s:g} s); raise --limit (limit_s) or compare "
                "fewer candidates",
                limit_s=f"{options.limit_s:g}",
            ) from None

    async def prefetch(self, request: session_pb2.SessionRequest) -> None:
        """Have here what the next request needs, while another one is carried out."""
        if request.WhichOneof("request") == "measure":
            with contextlib.suppress(FarmError):
                await self.cache.fetch_all(
                    blobs_named([request.measure.subject], request.measure.workload)
                )

    async def stop(self) -> None:
        """Kill every process."""
        for worker in list(self._workers):
            self._end(worker)
        while self._ending:
            await asyncio.wait(self._ending)
        if self._core is not None:
            self._core[1].release()
            self._core = None

    async def _measure(
        self, request: measure_pb2.MeasureRequest, options: Options, *, race: bool
    ) -> Measurement:
        subject, workload = request.subject, request.workload
        await self.cache.fetch_all(blobs_named([subject], workload))
        blank = Measurement(
            Status.OK,
            cache=options.cache,
            timing_class=self.device.description.timing_class.name.lower(),
        )
        try:
            context = await self._context([subject], workload)
        except Unusable as unusable:
            return replace(blank, status=Status.REFUSED, error=unusable.error)
        key = hashlib.sha256(
            workload.SerializeToString(deterministic=True) + options.cache.value.encode()
        ).digest()
        mine = measure_pb2.MeasureRequest()
        mine.CopyFrom(request)
        mine.context.CopyFrom(context)
        known = [
            it
            for it in (request.incumbent, self._best.get(key, 0.0))
            if race and 0 < it < LONGEST_INCUMBENT
        ]
        mine.incumbent = min(known, default=0.0)
        message = session_pb2.SessionRequest(seq=1, measure=mine)
        found = await self._judge(message, options.limit_s, blank)
        facts, host = self._facts()
        found = replace(found, fingerprint=facts, host=host)
        if race and found.value is not None:
            self._best[key] = min(found.value, self._best.get(key, found.value))
        return found

    async def _judge(
        self, message: session_pb2.SessionRequest, limit_s: float, blank: Measurement
    ) -> Measurement:
        """Return what a worker says of a candidate, or what its end means."""
        watch = _CpuWatch()
        try:
            reply = await self._ask(message, limit_s, watch)
        except TimeLimit as error:
            self.crashed = True
            return replace(blank, status=Status.TIMEOUT, error=error)
        except KernelCrashed as error:
            if error.details.get("signal") == "SIGPROF":
                slow = KernelFailed(
                    f"{message.measure.subject.name}: a call takes many times what the best so far takes; given up"
                )
                return replace(blank, status=Status.SLOW, error=slow)
            self.crashed = True
            return replace(blank, status=Status.CRASH, error=error)
        raise_error(reply)
        try:
            found = measurement_from_proto(reply.measured)
            blank.check_of_one_kind(found)
        except (FarmError, ValueError) as error:
            forged = KernelCrashed(
                f"{message.measure.subject.name}: forged its measure ({error}); correct it"
            )
            return replace(blank, status=Status.FORGED, error=forged)
        return self._doubted(found, watch)

    def _doubted(self, found: Measurement, watch: _CpuWatch) -> Measurement:
        """Return a measurement, FORGED if its process used more CPU time than its clock says has passed."""
        passed_s = sum(found.phases.get(name, 0.0) for name in ("warm_up", "time", "recheck"))
        spec = self.device.driver.loader()
        if (
            found.status is not Status.OK
            or spec.threads > 1
            or spec.kind not in ("native", "opencl")
        ):
            return found
        if watch.used_s <= CPU_FACTOR * passed_s + CPU_SLACK_S:
            return found
        return replace(
            found,
            status=Status.FORGED,
            error=KernelCrashed(
                f"measure: its process used {watch.used_s:.3f} s of CPU time while its own clock saw {passed_s:.3f} s: "
                "it changed the clock, or works in threads of its own; correct it"
            ),
        )

    async def _compare(self, request: measure_pb2.CompareRequest, options: Options) -> Comparison:
        alone: list[Measurement] = []
        for subject in request.subjects:
            one = measure_pb2.MeasureRequest(
                subject=subject, workload=request.workload, options=request.options
            )
            one.options.samples = 3
            alone.append(await self._measure(one, options, race=False))
        good = [index for index, found in enumerate(alone) if found.status is Status.OK]
        parts: dict[int, list[Samples]] = {}
        if len(good) > 1 and good[0] == 0:
            if alone[0].unit == "cycles":  # they are the same in each call
                parts = {index: [alone[index].samples] for index in good}
            else:
                parts = await self._interleave(request, options, good)
        # In a thread: with many samples it takes seconds, and the agent would be taken for gone.
        threshold = request.threshold or DEFAULT_THRESHOLD
        return await asyncio.to_thread(compared, alone, parts, threshold)

    async def _interleave(
        self, request: measure_pb2.CompareRequest, options: Options, good: Sequence[int]
    ) -> dict[int, list[Samples]]:
        """Run the rounds of the candidates at `good`; return the samples of each in each process."""
        subjects = [request.subjects[index] for index in good]
        context = await self._context(subjects, request.workload)
        mine = measure_pb2.CompareRequest(subjects=subjects, workload=request.workload)
        mine.options.CopyFrom(request.options)
        mine.options.budget_s = options.budget_s / COMPARE_PROCESSES
        mine.threshold = request.threshold
        mine.min_rounds = -(-(request.min_rounds or DEFAULT_ROUNDS[0]) // COMPARE_PROCESSES)
        mine.max_rounds = -(-(request.max_rounds or DEFAULT_ROUNDS[1]) // COMPARE_PROCESSES)
        parts: dict[int, list[Samples]] = {index: [] for index in good}
        for _ in range(COMPARE_PROCESSES):
            mine.context.CopyFrom(context)
            message = session_pb2.SessionRequest(seq=1, compare=mine)
            reply = await self._ask(message, options.limit_s, _CpuWatch())
            raise_error(reply)
            for index, samples in zip(good, _samples_of(reply, len(good)), strict=True):
                parts[index].append(samples)
            context.calls[:] = [parts[index][0].calls for index in good]
        return parts

    async def _context(
        self,
        subjects: Sequence[measure_pb2.Subject],
        workload: measure_pb2.Workload,
    ) -> measure_pb2.WorkerContext:
        name = self.device.description.timing_class.name
        context = measure_pb2.WorkerContext(
            timing_class=device_pb2.TimingClass.Value(f"TIMING_CLASS_{name}")
        )
        if workload.HasField("reference"):
            worker = self._open_worker()
            try:
                context.expected.extend(
                    await self._reference.expected(worker, subjects[0], workload)
                )
            finally:
                self._end(worker)
        return context

    async def _ask(
        self, message: session_pb2.SessionRequest, limit_s: float, watch: _CpuWatch
    ) -> session_pb2.SessionReply:
        """Send a request to a fresh worker, whose end is then under way."""
        worker = self._open_worker()
        try:
            child = await worker.child()
            self._pin(child)
            watch.pid = child.pid
            reply = await worker.exchange(child, message, limit_s, watch.begin)
            watch.end()
            self._reference.forget(reply.error.details.get("blob", ""))
            return reply
        finally:
            self._end(worker)

    def _open_worker(self) -> SessionWorker:
        worker = SessionWorker(self.device, self.cache, self.folder, self.log)
        self.used = True
        self._workers.add(worker)
        return worker

    def _end(self, worker: SessionWorker) -> None:
        """Kill a worker, and wait for its end beside everything else."""
        if worker not in self._workers:
            return
        self._workers.discard(worker)
        task = asyncio.create_task(_kill(worker))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _pin(self, child: Child) -> None:
        """Keep a worker, and what it starts, on a core where nobody else measures, if its device has one thread."""
        if self.device.driver.loader().threads > 1:
            return
        if self._core is None:
            self._core = claim_core()
        if self._core is not None:
            with contextlib.suppress(
                OSError
            ):  # it has ended, or may not be moved: then it is not pinned
                os.sched_setaffinity(child.pid, {self._core[0]})

    def _facts(self) -> tuple[Facts, str]:
        """Return the host's and the device's facts, and the name of those that stay."""
        description, spec = self.device.description, self.device.driver.loader()
        device = {
            "kind": spec.kind,
            "arch": spec.arch or None,
            "target": description.targets[0] if description.targets else None,
            "threads": str(spec.threads),
            "sandbox": self.device.labels.get("sandbox"),
        }
        facts = dict(host_facts())
        own = {f"device_{name}": text for name, text in device.items()}
        core = str(self._core[0]) if self._core is not None else None
        return {**facts, **own, "pinned_core": core}, host_name(facts, device)


def _samples_of(reply: session_pb2.SessionReply, count: int) -> list[Samples]:
    """Return the samples of each candidate that a worker compared; raises KernelCrashed if they cannot be them."""
    try:
        found = [it.samples for it in comparison_from_proto(reply.compared).measurements]
    except (FarmError, ValueError) as error:
        raise KernelCrashed(
            f"compare: a candidate forged the samples ({error}); correct it"
        ) from error
    if len(found) != count or not all(it.wall_ns for it in found):
        raise KernelCrashed(
            f"compare: a candidate forged the samples ({len(found)} sets of {count}); correct it"
        )
    return found


@dataclass(slots=True)
class _CpuWatch:
    """How much CPU time a process uses while it takes time, as the kernel counts it."""

    pid: int = 0
    used_s: float = 0.0
    _began_s: float | None = None

    def begin(self) -> None:
        """Note the beginning."""
        self._began_s = cpu_time_s(self.pid)

    def end(self) -> None:
        """Note the end; the process waits for its next request, so that it may be called late."""
        if self._began_s is not None:
            self.used_s = max(0.0, cpu_time_s(self.pid) - self._began_s)


async def _kill(worker: SessionWorker) -> None:
    await worker.kill()
    worker.close()
