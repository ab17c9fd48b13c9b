"""``farm build``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.files import EXISTING_FILE
from farm.cli.output import Output, output_option, seconds, size, table

if TYPE_CHECKING:
    from farm.artifact import Artifact
    from farm.building import ItemOutcome, Request
    from farm.cli.output import Steps


@click.command("build")
@click.argument("file", metavar="FILE", type=EXISTING_FILE)
@click.option("--target", "targets", multiple=True, help="Build for this target; may be repeated.")
@click.option(
    "--signature",
    "declarations",
    metavar="DECLARATION",
    multiple=True,
    help="What a function of C or LLVM IR takes, instead of the file's comments; may be repeated.",
)
@click.option(
    "--c-option",
    "options",
    metavar="OPTION",
    multiple=True,
    help="For the C compiler, such as -DN=4; may be repeated.",
)
@click.option("--target-host", help="What the code that calls accelerators is compiled for.")
@click.option("--variants", is_flag=True, help="Allow one function name on several targets.")
@click.option("--keep-going", is_flag=True, help="Go on after a failure, to report every one.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The artifact to write.  [default: FILE.farm in the current folder]",
)
@click.option(
    "--tuned",
    metavar="DB",
    type=EXISTING_FILE,
    help="Use the best schedules in this database, which `farm tune` wrote.",
)
@click.option("--local", is_flag=True, help="Build in this process, without a farm.")
@tracker_option
@output_option
def command(
    file: Path,
    targets: tuple[str, ...],
    declarations: tuple[str, ...],
    options: tuple[str, ...],
    target_host: str | None,
    variants: bool,
    keep_going: bool,
    out: Path | None,
    tuned: Path | None,
    local: bool,
    tracker: str | None,
    output: Output,
) -> None:
    """Build the functions of a file of Python, C (.c) or LLVM IR (.ll, .bc) into one artifact.

    A Python file is run in this process, as your own code. It defines `functions`, a list of what te.function returns,
    or `request`, as for farm.build.

    \b
    Example, kernels.py:
      from farm import te
      x = te.placeholder((8,), "int32", name="x")
      y = te.compute((8,), lambda i: x[i] * 2, name="y")
      functions = [te.function("double", [x, y])]

    \b
      farm build kernels.py
      farm build kernels.py --variants --target llvm --target "llvm -mtriple=aarch64-linux-gnu"

    C and LLVM IR say in a comment what each function takes; it returns nothing. A parameter without extents is one
    number, passed by its value; others are pointers. The role is input, output or inout.

    \b
    Example, saxpy.c (in LLVM IR the comment begins with ;):
      // farm: saxpy(a: float32, x: float32[1024], y: float32[1024] inout)
      void saxpy(float a, const float *x, float *y) {
        for (int i = 0; i < 1024; i++) y[i] += a * x[i];
      }

    \b
      farm build saxpy.c --target "llvm -mtriple=riscv64-linux-gnu"
      farm build saxpy.bc --signature "saxpy(a: float32, x: float32[8], y: float32[8] inout)"

    \b
    JSON: {"artifact": {"path", "digest", "size_bytes", "target_host", "symbols",
           "sections": [{"kind", "symbol", "target", "format", "size_bytes"}]},
           "builds": [{"kind", "symbol", "target", "agent_id", "seconds", "cached"}]}
    """  # noqa: D301 - click's mark
    if local and tracker:
        raise click.UsageError("--local builds without a farm; drop --tracker")
    out = out or Path(f"{file.stem}.farm")
    if not out.absolute().parent.is_dir():
        raise click.BadParameter(f"folder {out.parent} does not exist", param_hint="--out")
    from farm.cli.source import read_request

    request = read_request(file, targets, declarations, options)
    if tuned is not None:
        request = with_best(request, tuned)
    with output.steps("building") as steps:
        follow = _Follow(steps)
        artifact = _build(request, target_host, variants, keep_going, local, tracker, follow)
    artifact.save(out)
    builds = [outcome for _, outcome in sorted(follow.ended.items())]
    output.result(_json(out, artifact, builds), _text(out, artifact, builds))


def with_best(request: Request, database: Path) -> Request:
    """Return a request with the best schedules that a database has for its functions and targets."""
    from farm.building import plan
    from farm.tune import Records

    with Records(database, create=False) as records:
        items = plan(request, variants=True, tuned=records).items
    return [(item.target, [item.function]) for item in items if item.kind == "device"]


def _build(
    request: Request,
    target_host: str | None,
    variants: bool,
    keep_going: bool,
    local: bool,
    tracker: str | None,
    follow: _Follow,
) -> Artifact:
    from farm.building import build as build_here
    from farm.building import plan

    work = plan(request, target_host, variants=variants)  # refuse before connecting
    follow.order = {(i.kind, str(i.target), i.function.name): n for n, i in enumerate(work.items)}
    if local:
        return build_here(
            request, target_host, variants=variants, keep_going=keep_going, progress=follow
        )
    with connect(tracker) as client:
        return client.build(
            request, target_host, variants=variants, keep_going=keep_going, progress=follow
        )


class _Follow:
    """Shows a build's progress, and keeps how each item ended, by its place in the plan."""

    def __init__(self, steps: Steps) -> None:
        self.order: dict[tuple[str, str, str], int] = {}
        self.ended: dict[int, ItemOutcome] = {}
        self._steps = steps

    def __call__(self, outcome: ItemOutcome) -> None:
        from farm.building import ItemState

        item = outcome.item
        where = f" on {outcome.agent_id}" if outcome.agent_id else ""
        if outcome.state is ItemState.BUILDING:
            self._steps.say(f"building {item}{where}")
        elif outcome.state is ItemState.FAILED:
            self._steps.say(f"failed   {item}{where}")
        elif outcome.state is ItemState.DONE:
            how = "cached" if outcome.cached else seconds(outcome.seconds)
            self._steps.say(f"built    {item}{where} ({how})")
            self.ended[self.order[item.kind, str(item.target), item.function.name]] = outcome
            self._steps.advance(len(self.ended), len(self.order))


def _json(path: Path, artifact: Artifact, builds: list[ItemOutcome]) -> dict[str, object]:
    return {
        "artifact": {
            "path": str(path),
            "digest": str(artifact.digest),
            "size_bytes": artifact.digest.size_bytes,
            "target_host": artifact.target_host,
            "symbols": list(artifact.symbols),
            "sections": [
                {
                    "kind": section.kind,
                    "symbol": section.symbol,
                    "target": section.target,
                    "format": section.format,
                    "size_bytes": len(section.data),
                }
                for section in artifact.sections
            ],
        },
        "builds": [
            {
                "kind": outcome.item.kind,
                "symbol": outcome.item.function.name,
                "target": str(outcome.item.target),
                "agent_id": outcome.agent_id,
                "seconds": outcome.seconds,
                "cached": outcome.cached,
            }
            for outcome in builds
        ],
    }


def _text(path: Path, artifact: Artifact, builds: list[ItemOutcome]) -> str:
    rows = [
        (
            outcome.item.function.name,
            outcome.item.kind,
            str(outcome.item.target),
            outcome.agent_id or ("cache" if outcome.cached else "this process"),
            "cached" if outcome.cached else seconds(outcome.seconds),
        )
        for outcome in builds
    ]
    header = ("SYMBOL", "KIND", "TARGET", "AGENT", "TIME")
    summary = f"{path}: {size(artifact.digest.size_bytes)}, {artifact.digest}"
    return f"{table(header, rows)}\n\n{summary}"
