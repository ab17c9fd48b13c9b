"""Plots as inline SVG: points and steps on linear or logarithmic axes.

Owns: axes, ticks, marks. Does not own: what is plotted.

Invariant: every text is escaped; numbers are finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 40
COLOURS = ("#2a6fbb", "#c0504d", "#4f9d4f", "#8064a2", "#e08e2b", "#555555")
TICKS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one colour.

    Attributes
    ----------
    line
        Join them: ``none``, ``steps`` or ``line``.
    titles
        Shown when a pointer is over a point; as many as points, or none.
    """

    name: str
    points: Sequence[tuple[float, float]]
    line: str = "none"
    titles: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis."""

    label: str
    log: bool = False


def plot(series: Sequence[Series], x: Axis, y: Axis) -> str:
    """Return an SVG element; a sentence instead if there is nothing to draw."""
    kept = [(number, each, _usable(each.points, x, y)) for number, each in enumerate(series)]
    drawn = [(number, each, used) for number, each, used in kept if used]
    if not drawn:
        return "<p>Nothing to show.</p>"
    everything = [point for _, _, points in drawn for _, point in points]
    sx = _Scale([a for a, _ in everything], x.log, LEFT, WIDTH - RIGHT)
    sy = _Scale([b for _, b in everything], y.log, HEIGHT - BOTTOM, TOP)
    parts = [_frame(sx, sy, x, y)]
    for number, each, points in drawn:
        colour = COLOURS[number % len(COLOURS)]
        parts.append(_marks(each, points, sx, sy, colour))
    legend = "".join(
        f'<tspan fill="{COLOURS[number % len(COLOURS)]}" dx="12">{escape(each.name)}</tspan>'
        for number, each, _ in drawn
        if each.name
    )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 4}" class="legend">{legend}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _usable(
    points: Sequence[tuple[float, float]], x: Axis, y: Axis
) -> list[tuple[int, tuple[float, float]]]:
    return [
        (index, (a, b))
        for index, (a, b) in enumerate(points)
        if math.isfinite(a) and math.isfinite(b) and (a > 0 or not x.log) and (b > 0 or not y.log)
    ]


class _Scale:
    """From values to places."""

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float) -> None:
        self.log, self.start, self.end = log, start, end
        low, high = min(map(self._of, values)), max(map(self._of, values))
        room = (high - low) * 0.05 or (0.5 if log else abs(low) * 0.05 or 1.0)
        self.low, self.high = low - room, high + room

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def at(self, value: float) -> float:
        """Return the place of a value."""
        part = (self._of(value) - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values within the range."""
        if self.log and (marks := self._decades()):
            return marks
        step = 10 ** math.floor(math.log10((self.high - self.low) / TICKS))
        for factor in (1, 2, 5, 10):
            if (self.high - self.low) / (step * factor) <= TICKS:
                step *= factor
                break
        first = math.ceil(self.low / step)
        marks = [(first + n) * step for n in range(TICKS + 2)]
        found = [mark for mark in marks if mark <= self.high]
        return [10**mark for mark in found] if self.log else found

    def _decades(self) -> list[float]:
        """Return powers of ten within a logarithmic range, with what lies between as far as there is room.

        Empty if the range is so small that hardly two of them are in it.
        """
        exponents = range(math.floor(self.low), math.ceil(self.high) + 1)
        for factors in (range(1, 10), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            marks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
            inside = [mark for mark in marks if self.low <= math.log10(mark) <= self.high]
            if len(inside) <= TICKS + 1:
                return inside if len(inside) > 2 else []
        every = math.ceil(len(inside) / TICKS)
        return inside[::every]


def _frame(sx: _Scale, sy: _Scale, x: Axis, y: Axis) -> str:
    parts = [
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}" class="frame"/>'
    ]
    for value in sx.ticks():
        at = sx.at(value)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="grid"/>'
        )
        parts.append(
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 14}" class="x">{_number(value)}</text>'
        )
    for value in sy.ticks():
        at = sy.at(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>'
        )
        parts.append(f'<text x="{LEFT - 4}" y="{at + 4:.1f}" class="y">{_number(value)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM + 28}" class="y">{escape(x.label)}</text>'
    )
    parts.append(
        f'<text x="14" y="{middle}" class="x" transform="rotate(-90 14 {middle})">{escape(y.label)}</text>'
    )
    return "".join(parts)


def _marks(
    series: Series,
    points: Sequence[tuple[int, tuple[float, float]]],
    sx: _Scale,
    sy: _Scale,
    colour: str,
) -> str:
    places = [(sx.at(a), sy.at(b)) for _, (a, b) in points]
    if series.line != "none":
        path = f"M{places[0][0]:.1f},{places[0][1]:.1f}"
        for a, b in places[1:]:
            path += f"H{a:.1f}V{b:.1f}" if series.line == "steps" else f"L{a:.1f},{b:.1f}"
        return f'<path d="{path}" stroke="{colour}" class="line"/>'
    marks = []
    for (index, _), (a, b) in zip(points, places, strict=True):
        title = f"<title>{escape(series.titles[index])}</title>" if series.titles else ""
        marks.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}">{title}</circle>')
    return "".join(marks)


def _number(value: float) -> str:
    return f"{value:.3g}" if value and not 0.01 <= abs(value) < 100_000 else f"{value:.4g}"
