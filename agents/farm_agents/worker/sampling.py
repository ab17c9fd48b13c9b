"""Taking samples of a prepared function.

Owns: how many calls make a sample, warming up, one sample with everything that tells how it was disturbed, what caches
hold before it. Does not own: whether numbers are right (`numerics`), or what samples mean (`farm.measuring`).

Invariant: a sample's times hold calls alone: all else is read before and after them.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.measuring import CacheMode, Options, Samples
from farm.measuring.statistics import disturbed, settled

if TYPE_CHECKING:
    from farm.runtime.prepared import Lap, Prepared
    from farm_agents.worker.observers import Observer

MAX_CALLS = 1 << 20
MAX_WINDOWS = 1_000
"""Of warming up; the clock that ends it may be one that a candidate has stopped."""
GROWTH = 8.0
"""How much longer the next try at a sample is at most, while its calls are counted."""
SAMPLE_LIMIT_S = 0.05
FLUSH_BYTES = 64 << 20
"""What is read and written to have caches hold nothing else."""
ROTATE_BYTES = 96 << 20
MAX_SETS = 64
SET_BYTES = 512 << 20
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class ClockChanged(Exception):
    """Calls took less time than any call can; what the message says."""


def sets_of(size_bytes: int, cache: CacheMode) -> int:
    """Return how many sets of arrays of a size the calls of a lap take turns between."""
    if cache is not CacheMode.ROTATE:
        return 1
    wanted = math.ceil(ROTATE_BYTES / max(1, size_bytes))
    return max(2, min(wanted, MAX_SETS, SET_BYTES // max(1, size_bytes)))


@dataclass(slots=True)
class Host:
    """What of the host is read around each sample; what cannot be is left out."""

    cpu: int | None = None
    _stat: int | None = None
    _clock: int | None = None
    _line: bytes = b""

    def open(self) -> None:
        """Look for what there is, for the core that this process is pinned to."""
        cores = os.sched_getaffinity(0)
        self.cpu = next(iter(cores)) if len(cores) == 1 else None
        self._stat = _open("/proc/stat")
        if self.cpu is None or not self._find_line():
            self._stat = None
        path = f"/sys/devices/system/cpu/cpu{self.cpu}/cpufreq/scaling_cur_freq"
        self._clock = _open(path) if self.cpu is not None else None

    def steal_ns(self) -> int | None:
        """Return what the hypervisor gave to others on this core so far; None if it is not told."""
        if self._stat is None:
            return None
        for line in os.pread(self._stat, 1 << 16, 0).split(b"\n"):
            if line.startswith(self._line):
                return int(line.split()[8]) * _TICK_NS
        return None

    def clock_hz(self) -> int | None:
        """Return the core's clock now; None if it cannot be read."""
        try:
            return int(os.pread(self._clock, 64, 0)) * 1000 if self._clock is not None else None
        except (OSError, ValueError):
            self._clock = None
            return None

    def _find_line(self) -> bool:
        self._line = f"cpu{self.cpu} ".encode()
        if self._stat is None:
            return False
        lines = os.pread(self._stat, 1 << 16, 0).split(b"\n")
        return any(line.startswith(self._line) and len(line.split()) > 8 for line in lines)


@dataclass(slots=True)
class Sampler:
    """Takes samples of one function.

    Attributes
    ----------
    calls
        In each sample; `calibrate` sets it.
    """

    prepared: Prepared
    options: Options
    host: Host
    observers: Mapping[str, Observer] = field(default_factory=dict)
    calls: int = 1
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _flush: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def calibrate(self) -> float:
        """Find how many calls last as long as a sample should; return what a call took in the last try, in ns."""
        wanted_ns = self.options.sample_s * 1e9
        while True:
            lap = self._lap()
            took_ns = max(
                1, lap.cpu_ns or lap.wall_ns
            )  # what others take away is no reason for fewer
            enough = took_ns >= wanted_ns or self.calls >= MAX_CALLS
            if enough or self.options.cache is CacheMode.COLD:
                return (lap.cpu_ns or lap.wall_ns) / self.calls
            more = self.calls * min(GROWTH, max(1.2, 1.1 * wanted_ns / took_ns))
            self.calls = min(MAX_CALLS, math.ceil(more))

    def warm_up(self, first: float | None = None) -> float:
        """Run until three windows agree, or the time for it is over; return what a call took in the last, in ns.

        Parameters
        ----------
        first
            What a call took in a window that was just run.
        """
        until = time.perf_counter() + self.options.warm_up_s
        windows = [] if first is None else [first]
        while True:
            lap = self._lap()
            windows.append((lap.wall_ns if lap.cpu_ns is None else lap.cpu_ns) / self.calls)
            over = time.perf_counter() >= until or len(windows) == MAX_WINDOWS
            if over or settled(windows):
                return windows[-1]

    def sample(self, guard: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        """Take one sample; the calls alone are inside what `guard` gives."""
        before = {name: it.read() for name, it in self.observers.items()}
        steal = self.host.steal_ns()
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        start_ns = time.perf_counter_ns()
        lap = self._lap(guard)
        row: dict[str, Any] = {"start_ns": start_ns, "wall_ns": lap.wall_ns}
        if lap.cpu_ns is not None:
            after = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
            row |= {"cpu_ns": lap.cpu_ns, "switches": after - switches}
            if steal is not None and (now := self.host.steal_ns()) is not None:
                row["steal_ns"] = now - steal
        if (clock := self.host.clock_hz()) is not None:
            row["clock_hz"] = clock
        row["observed"] = {name: it.read() - before[name] for name, it in self.observers.items()}
        self._rows.append(row)

    def restart(self, keep: int = 0) -> None:
        """Forget the samples that were taken, the last `keep` aside."""
        del self._rows[: len(self._rows) - keep]

    def observe(self, observers: Mapping[str, Observer]) -> None:
        """Have observers look at each sample from now on; samples that they did not see are forgotten."""
        if observers:
            self.observers = observers
            self.restart()

    def last(self, clock: str) -> float:
        """Return what a call of the last sample took by a clock."""
        row = self._rows[-1]
        return float({**row, **row["observed"]}[clock]) / self.calls

    @property
    def count(self) -> int:
        """How many samples were taken."""
        return len(self._rows)

    def samples(self) -> Samples:
        """Return all samples that were taken."""
        rows = self._rows
        names = list(Samples().columns())
        columns = {
            name: tuple(row[name] for row in rows) if all(name in row for row in rows) else ()
            for name in names
        }
        observed = {name: tuple(row["observed"][name] for row in rows) for name in self.observers}
        found = Samples(calls=self.calls, **columns, observed=observed)
        return replace(found, disturbed=disturbed(found))

    def _lap(self, guard: Callable[[], AbstractContextManager[object]] = nullcontext) -> Lap:
        if self.options.cache is CacheMode.COLD:
            self._forget()
        with guard():
            lap = self.prepared.lap(self.calls)
        if lap.wall_ns * 2 < self.calls:
            raise ClockChanged(f"{self.calls} calls in {lap.wall_ns} ns")
        return lap

    def _forget(self) -> None:
        """Have the caches hold something else."""
        if self._flush is None:
            self._flush = np.zeros(FLUSH_BYTES, np.uint8)
        np.add(self._flush, 1, out=self._flush)


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
