"""Building on this machine, in this process.

Owns: compiling a plan's items one after the other. Does not own: the plan (`plan`), compiling one item
(`farm.codegen`), the artifact (`farm.artifact`).

Invariant: the artifact is that of a farm for the same plan, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from farm.artifact import Artifact, BuiltModule, assemble
from farm.building.plan import BuildItem, Request, Tuned, plan
from farm.building.report import ItemOutcome, ItemState, Progress, failure
from farm.codegen import compile_function
from farm.codegen.alone import compile_alone
from farm.core.clock import Clock, SystemClock
from farm.errors import FarmError
from farm.ir import Function
from farm.ir.source import Source
from farm.target import Target


@overload
def build(
    request: Request,
    target_host: str | Target | None = None,
    *,
    variants: bool = False,
    keep_going: bool = False,
    delay_host_codegen: Literal[False] = False,
    tuned: Tuned | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Artifact: ...


@overload
def build(
    request: Request,
    target_host: str | Target | None = None,
    *,
    variants: bool = False,
    keep_going: bool = False,
    delay_host_codegen: Literal[True],
    tuned: Tuned | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> tuple[tuple[Function, ...], Artifact]: ...


def build(
    request: Request,
    target_host: str | Target | None = None,
    *,
    variants: bool = False,
    keep_going: bool = False,
    delay_host_codegen: bool = False,
    tuned: Tuned | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Artifact | tuple[tuple[Function, ...], Artifact]:
    """Compile functions for one or several targets into one artifact, on this machine.

    Parameters
    ----------
    request
        ``{target: functions}``, ``[(target, functions)]``, or functions that carry a target.
    target_host
        What the code that calls accelerators is compiled for; None: the one that all targets name, else this machine.
    variants
        Allow one public name on several targets; the loader picks the first that a device supports.
    keep_going
        Go on after a failure, so that the report names everything that does not build.
    delay_host_codegen
        Compile nothing that calls accelerators yet: return the functions that this is needed for, and the artifact
        without it, both for `combine`.
    tuned
        Apply the best schedules that it knows, such as `farm.tune.Records`.
    progress
        Called with each change of an item.

    Raises
    ------
    FarmError
        As `plan`; and `BuildFailed`, which reports every function that did not build.

    Examples
    --------
    >>> import farm
    >>> from farm import te
    >>> x = te.placeholder((8,), "int32", name="x")
    >>> y = te.compute((8,), lambda i: x[i] * 2, name="y")
    >>> artifact = farm.build({"llvm": [te.function("double", [x, y])]})
    >>> list(artifact.symbols)
    ['double']
    """
    work = plan(request, target_host, variants=variants, tuned=tuned)
    items = [item for item in work.items if item.kind == "device" or not delay_host_codegen]
    modules = compile_items(items, keep_going=keep_going, progress=progress, clock=clock)
    artifact = assemble(work.target_host, modules)
    if not delay_host_codegen:
        return artifact
    return tuple(item.function for item in work.items if item.kind == "host"), artifact


def compile_items(
    items: Sequence[BuildItem],
    *,
    keep_going: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> list[BuiltModule]:
    """Compile items one after the other; raises BuildFailed."""
    report = progress or (lambda outcome: None)
    clock = clock or SystemClock()
    modules: list[BuiltModule] = []
    outcomes = [ItemOutcome(item, ItemState.QUEUED) for item in items]
    for index, item in enumerate(items):
        report(ItemOutcome(item, ItemState.BUILDING))
        outcomes[index] = _compile(item, modules, clock)
        report(outcomes[index])
        if outcomes[index].error is not None and not keep_going:
            break
    failed = failure(outcomes)
    if failed:
        raise failed
    return modules


def _compile(item: BuildItem, modules: list[BuiltModule], clock: Clock) -> ItemOutcome:
    began = clock.now()
    try:
        # What others wrote may crash the compiler, or be it.
        own = not isinstance(item.function.body, Source) and not item.target.is_plug_in
        foreign = item.kind == "device" and not own
        compiled = (compile_alone if foreign else compile_function)(
            item.code, item.kind, item.target
        )
        modules.append(compiled)
    except FarmError as error:
        return ItemOutcome(item, ItemState.FAILED, seconds=clock.now() - began, error=error)
    return ItemOutcome(item, ItemState.DONE, seconds=clock.now() - began)
