"""Tuning functions on a farm, in one call.

Owns: from functions and a selector to tasks, and back to results. Does not own: the tuner's loop (`tuner`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from farm.codegen import toolchain_of
from farm.core.clock import Clock
from farm.core.ids import random_id
from farm.errors import FarmError, InvalidInput
from farm.ir import Function
from farm.measuring import Options
from farm.target import Target, as_target
from farm.tune.limits import Limits
from farm.tune.measurer import DECIDE_S, FarmMeasurer, Measurer, Place
from farm.tune.records.database import Records
from farm.tune.records.record import Key, Workload
from farm.tune.task import Task
from farm.tune.templates import template_for
from farm.tune.transfer import transferred
from farm.tune.tuner import Decision, DeviceUse, Observer, Tuner

if TYPE_CHECKING:
    from farm.client import Client


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a tuning gave.

    Attributes
    ----------
    decisions
        One for each function, in the order given.
    interrupted
        It was ended by Ctrl-C: what was measured is kept, and nothing was compared.
    skipped
        Functions of other targets, with nothing to choose, or that the target cannot run, and why; if it is all, the
        first of these errors is raised.
    devices
        What each did.
    """

    decisions: tuple[Decision, ...]
    seconds: float
    trials: int
    measured: int
    interrupted: bool = False
    skipped: tuple[tuple[str, str], ...] = ()
    devices: Mapping[str, DeviceUse] = field(default_factory=dict)


def tune(
    functions: Function | Sequence[Function],
    client: Client | Measurer,
    *,
    selector: str = "",
    target: str | Target | None = None,
    trials: int = 64,
    time_s: float | None = None,
    patience: int | None = None,
    near: float | None = None,
    records: Records | str | Path | None = None,
    resume: bool = False,
    transfer: bool = True,
    seed: int = 0,
    strategy: str | None = None,
    weights: Mapping[str, float] | None = None,
    options: Options | None = None,
    decide_s: float = DECIDE_S,
    ceilings: bool = True,
    observer: Observer | None = None,
    clock: Clock | None = None,
) -> Tuned:
    """Find good schedules for functions on the devices of a farm.

    Parameters
    ----------
    functions
        As their authors wrote them; schedules are what is found. Those that are placed on other kinds of target than
        the devices' are skipped.
    client
        A connection to a farm.
    selector
        Of the devices; all that match are used at once. They have to be of one kind.
    target
        What is built for; None: a function's own target, else what the devices run best.
    trials, time_s, patience, near
        See `Limits`.
    records
        Where all measurements and the result are kept, opened or by its path.
    resume
        Go on with what `records` has of the same functions, targets and devices: nothing is measured twice.
    transfer
        Try first what was best on the most similar device in `records`.
    seed
        Of choices and inputs.
    strategy
        How configurations are chosen; see `farm.tune.STRATEGIES`.
    weights
        How much a saving counts, by function name; 1 by default.
    options
        How to measure while searching.
    decide_s
        How long the samples of the comparison at the end may take, for each function; 0.001 to 200 s.
    ceilings
        Whether to record, at the end, what the device can do at best, for reports.
    observer
        Called after each step.

    Returns
    -------
    Tuned
        KeyboardInterrupt during the search ends it: what was measured is kept and `interrupted` is set.

    Raises
    ------
    FarmError
        As `farm.tune.templates.template_for`, and what the farm failed.

    Examples
    --------
    ::

        with farm.connect() as client, farm.tune.Records("tune.db") as records:
            found = farm.tune.tune(matmul, client, selector="kind=cpu", trials=64, records=records)
            artifact = client.build({"llvm": [matmul]}, tuned=records)
    """
    limits = Limits(trials, time_s, patience, near)
    given = [functions] if isinstance(functions, Function) else list(functions)
    if not given:
        raise InvalidInput("tune: no functions; name one at least")
    if resume and records is None:
        raise InvalidInput("tune: there are no records to resume; name their database")
    opened = Records(records) if isinstance(records, str | Path) else records
    try:
        measurer = _measurer(client, selector, options, decide_s, seed)
        places = measurer.places()
        tasks, skipped = _tasks(
            given, places, target, seed, strategy, dict(weights or {}), measurer
        )
        for task in tasks:
            _prepare(task, opened, places[0], resume=resume, transfer=transfer)
        bounds = _bounds(tasks, measurer, opened) if near is not None else []
        tuner = Tuner(
            measurer, tasks, limits, opened, bounds=bounds, observer=observer, clock=clock
        )
        found = replace(_run(tuner), skipped=tuple(skipped))
        if ceilings and opened is not None and near is None and not found.interrupted:
            _bounds(tasks, measurer, opened)
        return found
    finally:
        if opened is not None and opened is not records:
            opened.close()


def _run(tuner: Tuner) -> Tuned:
    progress, interrupted = tuner.progress, False
    try:
        tuner.search()
        decisions = tuner.decide()
    except KeyboardInterrupt:
        interrupted = True
        decisions = [Decision(task, None) for task in progress.tasks]
    return Tuned(
        tuple(decisions),
        progress.elapsed_s,
        progress.trials,
        progress.measured,
        interrupted,
        devices=progress.devices,
    )


def _measurer(
    client: Client | Measurer, selector: str, options: Options | None, decide_s: float, seed: int
) -> Measurer:
    from farm.client import Client

    if isinstance(client, Client):
        return FarmMeasurer(client, selector, options=options, decide_s=decide_s, seed=seed)
    return client


def _tasks(
    functions: Sequence[Function],
    places: Sequence[Place],
    target: str | Target | None,
    seed: int,
    strategy: str | None,
    weights: dict[str, float],
    measurer: Measurer,
) -> tuple[list[Task], list[tuple[str, str]]]:
    run = random_id("tune")
    options = getattr(measurer, "options", None) or Options()
    functions, errors = _placed(functions, places)
    names = [function.name for function in functions]
    if len(set(names)) != len(names):
        raise InvalidInput(f"tune: two functions have one name ({', '.join(names)}); rename one")
    if unknown := sorted(set(weights) - set(names) - set(errors)):
        raise InvalidInput(f"tune: weights of unknown functions ({', '.join(unknown)})")
    tasks: list[Task] = []
    for function in functions:
        chosen = as_target(function.target or target or places[0].targets[0])
        threads = min(place.threads for place in places)
        try:
            template = template_for(function, chosen, threads=threads)
        except InvalidInput as error:
            errors[function.name] = error
            continue
        key = Key(
            workload=Workload.of(function).id,
            target=str(chosen),
            host=places[0].host,
            cache=options.cache.value,
            toolchain=toolchain_of(chosen),
        )
        tasks.append(
            Task(
                function,
                template,
                key,
                seed=seed,
                strategy=strategy,
                run=run,
                weight=weights.get(function.name, 1.0),
            )
        )
    if not tasks:
        raise next(iter(errors.values()))
    return tasks, [(name, error.message) for name, error in errors.items()]


def _placed(
    functions: Sequence[Function], places: Sequence[Place]
) -> tuple[list[Function], dict[str, FarmError]]:
    """Return the functions that may run on the devices, and for the names of others why they may not."""
    family = as_target(places[0].targets[0]).family
    fitting = [f for f in functions if f.target is None or as_target(f.target).family == family]
    names = {function.name for function in fitting}
    errors: dict[str, FarmError] = {}
    for function in functions:
        if function.name not in names:
            errors[function.name] = InvalidInput(
                f"tune {function.name}: it is for {function.target}, and the devices run {family}; choose others"
            )
    return fitting, errors


def _prepare(
    task: Task, records: Records | None, place: Place, *, resume: bool, transfer: bool
) -> None:
    """Have a task know what was recorded, and what to try first."""
    first = [dict(task.template.default)]
    if records is not None:
        if resume:
            task.resume(records.under(task.key, task.template.name))
        task.exclude(records.quarantined(task.key.workload, task.key.target))
        if transfer:
            known = records.find(workload=task.key.workload)
            first += transferred(known, task.key, task.template.name, place.fingerprint)
    task.try_first(first)


def _bounds(
    tasks: Sequence[Task], measurer: Measurer, records: Records | None
) -> list[float | None]:
    """Return the least time that a call of each task can take; None where that cannot be told."""
    from farm.tune.ceilings import measured_ceilings
    from farm.tune.roofline import work_of

    found: list[float | None] = []
    for task in tasks:
        try:
            known = measured_ceilings(measurer, task.function, task.key, records, run=task.run)
        except FarmError:
            known = None
        found.append(None if known is None else known.bound(work_of(task.function)))
    return found
