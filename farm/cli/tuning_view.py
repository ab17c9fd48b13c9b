"""How a tuning under way is shown: live on a terminal, plain lines otherwise.

Owns: both forms. Does not own: the tuning (`farm.tune`), or the result's form (`farm.cli.tune`).

Invariant: everything goes to standard error.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from farm.cli.text import printable, span

if TYPE_CHECKING:
    from farm.tune.task import Task
    from farm.tune.tuner import Progress

LINE_EVERY_S = 5.0
REFRESH_S = 0.25
ERRORS = 5

View = Callable[["Progress"], None]


@contextlib.contextmanager
def shown() -> Iterator[View]:
    """Yield what to call with each progress."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield _Table(live)


def amount(value: float | None, unit: str) -> str:
    """Return a time of a call: ``3.41 ms``, ``812 cycles``."""
    if value is None:
        return "-"
    if unit != "ns":
        return f"{value:,.0f} {unit}"
    for name, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {name}"
    return f"{value:.3g} ns"


def failures(task: Task) -> str:
    """Return ``3 crash, 1 wrong``; empty if nothing failed."""
    bad = [(kind.value, n) for kind, n in task.outcomes.most_common() if kind.value != "ok"]
    return ", ".join(f"{count} {kind}" for kind, count in bad)


def reasons(task: Task) -> list[str]:
    """Return the first distinct errors with how often they came, the most frequent first."""
    return [
        f"{count} x {outcome.value}: {printable(message)}"
        for (outcome, message), count in task.errors.most_common(ERRORS)
    ]


def summary(progress: Progress) -> str:
    """Return one line that says where a tuning stands."""
    parts = [f"trial {progress.trials}/{progress.limits.trials}"]
    for task in progress.tasks:
        own = f"{printable(task.name)} {amount(task.best, task.unit)}"
        bad = failures(task)
        parts.append(f"{own} ({bad})" if bad else own)
    parts.append(f"{progress.rate:.1f}/s")
    if progress.left_s is not None:
        parts.append(f"{span(progress.left_s)} left")
    return "; ".join(parts)


class _Lines:
    """A line for each gain, and one now and then."""

    def __init__(self) -> None:
        self._best: dict[str, float] = {}
        self._last = 0.0
        self._phase = ""

    def __call__(self, progress: Progress) -> None:
        if progress.phase != self._phase:
            self._phase = progress.phase
            if self._phase == "decide":
                click.echo("comparing the best with what was known before", err=True)
        gained = False
        for task in progress.tasks:
            if task.best is not None and task.best < self._best.get(task.name, float("inf")):
                self._best[task.name], gained = task.best, True
        now = time.monotonic()
        if progress.phase == "search" and (gained or now - self._last >= LINE_EVERY_S):
            self._last = now
            click.echo(summary(progress), err=True)


class _Table:
    """A table that is drawn again."""

    def __init__(self, live: Any) -> None:  # noqa: ANN401 - of rich, which is loaded late
        self._live = live
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < REFRESH_S and progress.phase == "search":
            return
        self._last = now
        self._live.update(self._drawn(progress), refresh=True)

    def _drawn(self, progress: Progress) -> Any:  # noqa: ANN401
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        tasks = Table("WORKLOAD", "TRIALS", "BEST", "AT DEFAULT", "FAILED", box=None)
        for task in progress.tasks:
            name = printable(task.name) + (" *" if task.name == progress.current else "")
            first = amount(task.default_value, task.unit)
            tasks.add_row(
                Text(name),
                str(task.trials),
                amount(task.best, task.unit),
                first,
                Text(failures(task) or "-"),
            )
        devices = Table("DEVICE", "TRIALS", "BUSY", "LAST", box=None)
        for device_id, use in sorted(progress.devices.items()):
            busy = min(1.0, use.busy_s / progress.elapsed_s) if progress.elapsed_s > 0 else 0.0
            devices.add_row(Text(device_id), str(use.trials), f"{100 * busy:.0f} %", use.last.value)
        left = "" if progress.left_s is None else f", {span(progress.left_s)} left"
        head = (
            f"{progress.phase}: {progress.trials} of {progress.limits.trials} trials, "
            f"{progress.rate:.1f}/s{left}"
        )
        lines = [line for task in progress.tasks for line in reasons(task)]
        return Group(Text(head), tasks, devices, *map(Text, lines[:ERRORS]))
