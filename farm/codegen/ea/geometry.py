"""Windows that slide over images, and the rows that parts of them take in a memory.

Owns: which pixels a tile of outputs reads and where they lie on chip, zeros around the image included.
Does not own: channels, sizes of tiles (`tiling`), or what is computed of a window.

Invariant: the runs and gaps of a patch are all of its rows, each once.

Notes
-----
A matrix is an image of one line with windows of one pixel, so that every layer has a window. On each axis, tap `t` of
output `i` is the source's pixel ``step * (stride * i + dilation * t) - before``; ``stride * i + dilation * t`` are the
positions that are on chip, so that pixels that no tap reads are not loaded.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of an image that a window slides over.

    Attributes
    ----------
    size, out
        Pixels of the source and of the result.
    kernel, stride, dilation, step, before
        See the module's notes.
    """

    size: int
    out: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    step: int = 1
    before: int = 0

    @staticmethod
    def of(size: int, out: int, kernel: int, stride: int, dilation: int, before: int) -> Axis:
        """Return an axis whose strides are counted in pixels; only every `step`-th pixel will be needed."""
        step = stride if kernel == 1 else math.gcd(stride, dilation)
        return Axis(
            size, out, kernel, stride // step, dilation // step if kernel > 1 else 1, step, before
        )

    @property
    def is_plain(self) -> bool:
        """Whether each output is of the one pixel at its own place."""
        return self == Axis(self.size, self.size)

    @property
    def reach(self) -> int:
        """Return how many positions lie from the first tap of an output to the last."""
        return (self.kernel - 1) * self.dilation + 1

    def positions(self, outputs: int) -> int:
        """Return how many positions some neighbouring outputs read."""
        return (outputs - 1) * self.stride + self.reach

    def inside(self, first: int, outputs: int) -> tuple[int, int, int]:
        """Return which positions of some outputs are pixels, from and to, counted from the first; and that pixel."""
        start = first * self.stride
        low = max(0, -(-self.before // self.step) - start)
        high = min(self.positions(outputs), (self.size - 1 + self.before) // self.step + 1 - start)
        return low, max(low, high), (start + low) * self.step - self.before


@dataclass(frozen=True, slots=True)
class Window:
    """What slides over a number of images, one after the other in memory."""

    images: int
    down: Axis
    right: Axis

    @property
    def taps(self) -> int:
        """Pixels of one window."""
        return self.down.kernel * self.right.kernel

    @property
    def outputs(self) -> int:
        """Pixels of all results."""
        return self.images * self.down.out * self.right.out

    @property
    def can_be_flat(self) -> bool:
        """Whether windows of several lines can be one sequence of rows; see `Patch`."""
        return self.down.stride == self.right.stride == 1 and self.down.out > 1


def matrix(rows: int) -> Window:
    """Return the window of a matrix."""
    return Window(1, Axis(1, 1), Axis(rows, rows))


@dataclass(frozen=True, slots=True)
class Run:
    """`count` pixels of one line, in rows of a memory from `place` on; `pixel` is the index of the first."""

    place: int
    count: int
    pixel: int


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of results in one image."""

    image: int
    line: int
    lines: int
    pixel: int
    pixels: int


@dataclass(frozen=True, slots=True)
class Patch:
    """Rows that hold what an area's windows read, line after line.

    Attributes
    ----------
    pitch
        Rows from one line to the next. A line's last zeros are the next one's first where there are both.
    runs, gaps
        Rows that hold pixels, and rows (first, count) beside the image.
    """

    pitch: int
    rows: int
    runs: tuple[Run, ...]
    gaps: tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=4096)
def patch(window: Window, area: Area, most: int) -> Patch:
    """Return the patch of an area; runs are of at most so many pixels."""
    down, right = window.down, window.right
    lines, width = down.positions(area.lines), right.positions(area.pixels)
    left, end, first = right.inside(area.pixel, area.pixels)
    top, bottom, line = down.inside(area.line, area.lines)
    shared = min(left, width - end) if end > left else 0
    pitch = width - shared
    runs: list[Run] = []
    for position in range(top, bottom if end > left else top):
        source = area.image * down.size + line + (position - top) * down.step
        run = Run(position * pitch + left, end - left, source * right.size + first)
        _append(runs, run, right.step, most)
    gaps, reached, rows = [], 0, lines * pitch + shared
    for place, count in (*((run.place, run.count) for run in runs), (rows, 0)):
        for start in range(reached, place, most):
            gaps.append((start, min(most, place - start)))
        reached = place + count
    return Patch(pitch, rows, tuple(runs), tuple(gaps))


def results(window: Window, area: Area, pitch: int) -> list[Run]:
    """Return where an area's results lie: in rows whose lines are `pitch` apart, and among all pixels."""
    runs: list[Run] = []
    for number in range(area.lines):
        line = area.image * window.down.out + area.line + number
        pixel = line * window.right.out + area.pixel
        _append(runs, Run(number * pitch, area.pixels, pixel), 1, 4095)
    return runs


def _append(runs: list[Run], run: Run, step: int, most: int) -> None:
    """Add a run to the last one where it goes on there, in the memory and among the pixels."""
    if runs:
        last = runs[-1]
        on = (last.place + last.count, last.pixel + last.count * step) == (run.place, run.pixel)
        if on and last.count + run.count <= most:
            runs[-1] = Run(last.place, last.count + run.count, last.pixel)
            return
    for start in range(0, run.count, most):
        runs.append(Run(run.place + start, min(most, run.count - start), run.pixel + start * step))
