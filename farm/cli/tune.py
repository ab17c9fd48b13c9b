"""``farm tune``: find good schedules on the farm's devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.files import EXISTING_FILE
from farm.cli.output import Output, output_option
from farm.cli.spans import seconds, seconds_or_none
from farm.cli.text import printable, span

if TYPE_CHECKING:
    from farm.building import Request
    from farm.ir import Function
    from farm.tune.tuner import Decision
    from farm.tune.tuning import Tuned

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
STRATEGIES = ("portfolio", "surrogate", "local", "evolutionary", "annealing", "random")


@click.command("tune")
@click.argument("file", metavar="FILE", type=EXISTING_FILE)
@click.option("--devices", "selector", default="", metavar="SELECTOR", help="Devices to tune on.")
@click.option("--function", "names", multiple=True, help="Tune this function; may be repeated.")
@click.option("--target", help="Build for this target.  [default: what the devices run best]")
@click.option("--trials", default=64, show_default=True, type=click.IntRange(1, 1_000_000))
@click.option(
    "--time",
    "time_s",
    callback=seconds_or_none,
    metavar="SPAN",
    help="Stop after so long, such as 10m.",
)
@click.option(
    "--patience",
    type=click.IntRange(1, 1_000_000),
    help="Stop after so many trials in a row without a gain of 1 %.",
)
@click.option(
    "--near",
    type=click.FloatRange(0.001, 1),
    help="Stop at this part of what the device can do at best (the roofline), such as 0.9.",
)
@click.option(
    "--records",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("tune.db"),
    show_default=True,
    help="The database that keeps every measurement and the result.",
)
@click.option(
    "--decide",
    "decide_s",
    callback=seconds,
    default="20s",
    show_default=True,
    metavar="SPAN",
    help="How long the best may be compared at the end.",
)
@click.option("--no-ceilings", is_flag=True, help="Do not measure what the device can do at best.")
@click.option("--resume", is_flag=True, help="Go on with a former tuning; measure nothing twice.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, (1 << 63) - 1))
@click.option("--strategy", type=click.Choice(STRATEGIES), help="How to choose what to try.")
@tracker_option
@output_option
def command(
    file: Path,
    selector: str,
    names: tuple[str, ...],
    target: str | None,
    trials: int,
    time_s: float | None,
    patience: int | None,
    near: float | None,
    records: Path,
    decide_s: float,
    no_ceilings: bool,
    resume: bool,
    seed: int,
    strategy: str | None,
    tracker: str | None,
    output: Output,
) -> None:
    """Find good schedules for the functions of a Python file on devices of one kind, all at once.

    Every candidate's numbers are checked before its time counts, and the best are compared with what was best before,
    interleaved: a tie changes nothing. `farm build --tuned tune.db` uses what was found.

    Ctrl-C ends the search and keeps what was measured; with --resume it goes on.

    \b
    Example:
      farm tune kernels.py --devices kind=cpu --trials 100
      farm tune kernels.py --devices kind=ea --function layer --records tune.db --resume --time 10m

    \b
    JSON: {"workloads": [{"name", "target", "trials", "outcomes", "best", "default", "unit",
           "winner": {"configuration", "value", "ratio", "low", "high"}, "is_new",
           "errors": [{"outcome", "message", "count"}]}],
           "skipped": [{"name", "reason"}], "devices": [{"device_id", "trials", "busy_s"}],
           "trials", "measured", "seconds", "interrupted", "records"}
    """  # noqa: D301 - click's mark
    from farm.cli.source import read_request
    from farm.cli.tuning_view import shown
    from farm.tune import Records, tune

    functions = chosen(read_request(file, [target] if target else []), names)
    with connect(tracker) as client, Records(records) as opened, shown() as view:
        found = tune(
            functions,
            client,
            selector=selector,
            trials=trials,
            time_s=time_s,
            patience=patience,
            near=near,
            records=opened,
            resume=resume,
            seed=seed,
            strategy=strategy,
            decide_s=decide_s,
            ceilings=not no_ceilings,
            observer=view,
        )
    output.result(_json(found, records), _text(found, records))
    if found.interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if all(decision.winner is None for decision in found.decisions):
        raise click.exceptions.Exit(EXIT_FAILED)


def chosen(request: Request, names: Sequence[str]) -> list[Function]:
    """Return the functions of a request, each with its target, those named if any are.

    Raises
    ------
    InvalidInput
        A name is unknown.
    """
    from farm.errors import InvalidInput
    from farm.ir import Function
    from farm.target import as_target

    pairs: list[Any] = list(request.items() if isinstance(request, Mapping) else [])
    if isinstance(request, Function):
        pairs = [(None, request)]
    elif not isinstance(request, Mapping):
        pairs = [each if isinstance(each, tuple) else (None, each) for each in request]
    found = [
        function if target is None else replace(function, target=str(as_target(target)))
        for target, part in pairs
        for function in ([part] if isinstance(part, Function) else part)
    ]
    known = {function.name for function in found}
    if unknown := sorted(set(names) - known):
        raise InvalidInput(
            f"tune: no function {', '.join(unknown)}; the file has {', '.join(sorted(known))}"
        )
    return [function for function in found if not names or function.name in names]


def _json(found: Tuned, records: Path) -> dict[str, object]:
    return {
        "workloads": [_workload(decision) for decision in found.decisions],
        "skipped": [{"name": name, "reason": reason} for name, reason in found.skipped],
        "devices": [
            {"device_id": device_id, "trials": use.trials, "busy_s": use.busy_s}
            for device_id, use in sorted(found.devices.items())
        ],
        "trials": found.trials,
        "measured": found.measured,
        "seconds": found.seconds,
        "interrupted": found.interrupted,
        "records": str(records),
    }


def _workload(decision: Decision) -> dict[str, object]:
    task, winner = decision.task, decision.winner
    return {
        "name": task.name,
        "target": task.key.target,
        "trials": task.trials,
        "outcomes": {kind.value: count for kind, count in task.outcomes.items()},
        "best": task.best,
        "default": task.default_value,
        "unit": task.unit,
        "winner": None
        if winner is None
        else {
            "configuration": dict(winner.configuration),
            "value": winner.value,
            "ratio": winner.ratio,
            "low": winner.low,
            "high": winner.high,
        },
        "is_new": decision.is_new,
        "errors": [
            {"outcome": outcome.value, "message": message, "count": count}
            for (outcome, message), count in task.errors.most_common()
        ],
    }


def _text(found: Tuned, records: Path) -> str:
    from farm.cli.tuning_view import reasons

    lines = []
    for decision in found.decisions:
        lines.append(f"{printable(decision.task.name)}: {_verdict(decision)}")
        lines += [f"  {reason}" for reason in reasons(decision.task)]
    lines += [f"{printable(name)}: skipped; {printable(why)}" for name, why in found.skipped]
    again = " (interrupted; --resume goes on)" if found.interrupted else ""
    lines.append(
        f"{found.trials} trials, {found.measured} of them measured now, in {span(found.seconds)}{again}; "
        f"records in {records}"
    )
    return "\n".join(lines)


def _verdict(decision: Decision) -> str:
    from farm.cli.tuning_view import amount, failures

    task, winner = decision.task, decision.winner
    if task.best is None:
        causes = failures(task)
        return (
            f"nothing ran right ({causes})"
            if causes
            else "not tried: the trials or the time were used up"
        )
    best = amount(task.best, task.unit)
    if winner is None:
        why = (
            "" if decision.error is None else f"; not compared: {printable(decision.error.message)}"
        )
        return f"best {best}{why}"
    value = amount(winner.value, winner.unit)
    if not decision.is_new:
        return f"{value}; nothing found is proven to be faster than what was known"
    faster = f"{1 / winner.ratio:.3g} times as fast as before ({1 / winner.high:.3g} to {1 / winner.low:.3g})"
    return f"{value}; {faster}"
