"""Comparisons as commands show them, and the exit code that follows.

Owns: their JSON, their words, what counts as failed. Does not own: comparing.

Invariant: the result is printed before the failure is raised.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from farm.cli.job import headline, job_json
from farm.cli.measured import measurement_json, measurement_text
from farm.cli.output import Output
from farm.cli.text import printable
from farm.errors import FarmError, Inconclusive, KernelFailed, MeasuredSlower
from farm.measuring import Comparison, Status, Verdict

if TYPE_CHECKING:
    from farm.client import JobResult


def show_comparison(result: JobResult, output: Output) -> None:
    """Show the comparison of a job.

    Raises
    ------
    KernelFailed, MeasuredSlower, Inconclusive
        A candidate did not run right; else one is slower than the first; else nothing could be said of one.
    """
    found = result.comparison
    assert found is not None, "only jobs that compare are shown as such"
    names = result.job.candidates
    output.result(
        {"job": job_json(result.job), "device_id": result.device_id, **_json(names, found)},
        "\n".join([headline(result.job), *_lines(names, found)]),
    )
    failure = failure_of(names, found)
    if failure is not None:
        raise failure


def failure_of(names: tuple[str, ...], found: Comparison) -> FarmError | None:
    """Return why a comparison is no success; None if nothing is slower than the first."""
    for name, measurement in zip(names, found.measurements, strict=True):
        if measurement.status is not Status.OK:
            why = measurement.error.message if measurement.error else measurement.status
            return KernelFailed(f"compare: {name} did not run right ({why}); correct it")
    for verdict, error in ((Verdict.SLOWER, MeasuredSlower), (Verdict.INCONCLUSIVE, Inconclusive)):
        which = [
            f"{name} ({pair.low:.3f} to {pair.high:.3f})"
            for name, pair in zip(names[1:], found.pairs, strict=True)
            if pair.verdict is verdict
        ]
        if which:
            what = "slower than" if verdict is Verdict.SLOWER else "neither faster nor slower than"
            todo = (
                "look at what changed"
                if verdict is Verdict.SLOWER
                else "give more rounds, a larger threshold, or a quieter device"
            )
            return error(f"compare: {', '.join(which)} is {what} {names[0]}; {todo}")
    return None


def _json(names: tuple[str, ...], found: Comparison) -> dict[str, Any]:
    return {
        "rounds": found.rounds,
        "candidates": [
            {"name": name, **measurement_json(measurement)}
            for name, measurement in zip(names, found.measurements, strict=True)
        ],
        "pairs": [
            {
                "name": name,
                "first": names[0],
                "verdict": pair.verdict,
                "ratio": _number(pair.ratio),
                "low": _number(pair.low),
                "high": _number(pair.high),
                "pairs": pair.pairs,
                "clean": pair.clean,
            }
            for name, pair in zip(names[1:], found.pairs, strict=True)
        ],
    }


def _lines(names: tuple[str, ...], found: Comparison) -> list[str]:
    lines = [f"{printable(names[0])}: {measurement_text(found.measurements[0])}"]
    for index, pair in enumerate(found.pairs, 1):
        lines.append(f"{printable(names[index])}: {measurement_text(found.measurements[index])}")
        if pair.verdict is not Verdict.NONE:
            lines.append(
                f"  {pair.verdict}: {pair.ratio:.4g} times the time of {printable(names[0])}, 95 % interval "
                f"{pair.low:.4g} to {pair.high:.4g} ({pair.pairs} pairs, {pair.clean} clean)"
            )
    return lines


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
