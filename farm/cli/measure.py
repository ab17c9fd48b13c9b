"""``farm measure``.

Owns: its options. Does not own: candidates (`farm.cli.candidates`), what is shown (`farm.cli.measured`).

Invariant: every candidate is shown, whatever became of it, also if the farm fails before the last; the exit code is
that of the first that is not ok.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from farm.cli.candidates import keys_of, read_candidate, read_workload, workload_options
from farm.cli.connection import connect, tracker_option
from farm.cli.measured import measurement_json, measurement_text
from farm.cli.output import Output, output_option
from farm.cli.run import check_number
from farm.cli.text import printable
from farm.core.limits import MAX_JOB_LIMIT_S
from farm.errors import FarmError, KernelFailed

if TYPE_CHECKING:
    from farm.client import Measured


@click.command("measure")
@click.argument("files", metavar="FILE.farm[:FUNCTION]...", nargs=-1, required=True)
@click.option("--device", "selector", default="", help="Which devices will do; empty: any.")
@workload_options
@click.option(
    "--samples",
    type=click.IntRange(3, 10_000),
    default=30,
    show_default=True,
    help="How many samples.",
)
@click.option(
    "--limit",
    "limit_s",
    metavar="SECONDS",
    type=click.FloatRange(0.1, MAX_JOB_LIMIT_S),
    callback=check_number,
    default=60.0,
    show_default=True,
    help="Time limit of each candidate.",
)
@tracker_option
@output_option
def command(
    files: tuple[str, ...],
    selector: str,
    seed: int,
    reference: str | None,
    cache: str,
    sample_s: float,
    samples: int,
    limit_s: float,
    tracker: str | None,
    output: Output,
) -> None:
    """Measure functions on one device, each in a process of its own: numbers first, then time.

    Numbers are compared with --reference, before and after timing. Values of one device, cache mode and unit are
    comparable; for a verdict on small differences use `farm compare`.

    \b
    Example:
      farm measure kernels.farm:layer --device kind=ea
      farm measure new.farm --reference plain.farm --samples 100 -o json

    \b
    JSON: {"candidates": [{"name", "device_id", "status", "value", "unit", "clock", "timing_class", "cache", "grade",
           "checked", "statistics": null or {"n", "clean", "min", "p10", "median", "spread", "low", "high"},
           "samples": {"calls", "start_ns", "wall_ns", "cpu_ns", "switches", "steal_ns", "clock_hz", "observed",
           "disturbed"}, "target", "host", "fingerprint", "phases", "error": null or {"code", "message"}}]}
    """  # noqa: D301 - click's mark
    from farm.measuring import CacheMode, Options

    keys = keys_of(files)
    candidates = [read_candidate(text, key) for text, key in zip(files, keys, strict=True)]
    workload = read_workload(seed, reference)
    options = Options(
        cache=CacheMode(cache),
        samples=samples,
        sample_s=sample_s,
        budget_s=limit_s / 2,
        limit_s=limit_s,
    )
    found: list[Measured] = []
    with output.steps("measuring") as steps, connect(tracker) as client:
        results = client.measure(
            candidates,
            workload=workload,
            selector=selector,
            devices=1,
            options=options,
            race=False,
        )
        try:
            for measured in results:
                found.append(measured)
                steps.say(f"{measured.candidate.key}: {measured.status}")
                steps.advance(len(found), len(candidates))
        except (FarmError, KeyboardInterrupt):  # what is measured already is nowhere else
            for measured in found:
                steps.say(_text(measured))
            raise
    value = {"candidates": [_json(measured) for measured in found]}
    output.result(value, "\n".join(map(_text, found)))
    failed = next((it.error for it in found if it.error is not None), None)
    if failed is not None:
        known = isinstance(failed, FarmError) and failed.exit_code in (1, 2, 4)
        raise failed if known else KernelFailed(failed.message)


def _json(measured: Measured) -> dict[str, Any]:
    about = {"name": measured.candidate.key, "device_id": measured.device_id}
    if measured.measurement is not None:
        return {**about, **measurement_json(measured.measurement)}
    error = measured.error
    return {
        **about,
        "status": measured.status,
        "value": None,
        "error": None if error is None else {"code": error.code, "message": error.message},
    }


def _text(measured: Measured) -> str:
    found = measured.measurement
    if found is None:
        why = f": {measured.error.message}" if measured.error else ""
        return f"{printable(measured.candidate.key)}: {measured.status}{why}"
    return f"{printable(measured.candidate.key)} on {measured.device_id}: {measurement_text(found)}"
