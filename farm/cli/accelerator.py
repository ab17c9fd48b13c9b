"""``farm accelerator``: which are installed, a working start for a new one, and checking one.

Owns: those commands. Does not own: the surface (`farm.accel`), the checks (`farm.porting`).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli.output import Output, output_option, table
from farm.cli.spans import seconds_or_none
from farm.errors import FarmError, InvalidInput

if TYPE_CHECKING:
    from farm.porting import Finding

SHOWN = 40
FEW = 8


@click.group("accelerator")
def command() -> None:
    """List the accelerators that packages bring, start a new one, check one.

    docs/examples/port has an example of each way to port an accelerator.

    \b
    Example:
      farm accelerator new npu
      pip install ./npu
      farm accelerator check npu
    """  # noqa: D301 - click's mark


@command.command("list")
@output_option
def list_them(output: Output) -> None:
    """List the accelerators that can be asked for here, those that cannot be used too.

    Each is asked in a process of its own: one that raises or hangs is listed with its problem.

    \b
    JSON: {"accelerators": [{"name", "package", "version", "ways", "configs", "timing", "problem"}]}
    """  # noqa: D301 - click's mark
    found = [_described(name) for name in _all_names()]
    rows = [
        (
            str(it["name"]),
            f"{it['package']} {it['version']}",
            *_words(it),
            " ".join(str(it["problem"]).split()),
        )
        for it in found
    ]
    text = table(("NAME", "PACKAGE", "WAYS", "CONFIGURATIONS", "TIMES", "PROBLEM"), rows)
    output.result({"accelerators": found}, text)


@command.command("new")
@click.argument("name", metavar="NAME")
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where the files go.  [default: NAME]",
)
@output_option
def new(name: str, folder: Path | None, output: Output) -> None:
    """Write a package with a working accelerator: products of int8 matrices, run with numpy.

    \b
    JSON: {"name", "files"}
    """  # noqa: D301 - click's mark
    from farm.porting.scaffold import write_start

    files = [str(path) for path in write_start(name, folder or Path(name))]
    home = folder or Path(name)
    text = "\n".join([*files, "", f"next: pip install {home}, then farm accelerator check {name}"])
    output.result({"name": name, "files": files}, text)


@command.command("check")
@click.argument("package", metavar="PACKAGE")
@click.option("--seed", type=click.IntRange(0, 1 << 31), default=0, help="Of shapes and numbers.")
@click.option(
    "--limit",
    "limit_s",
    callback=seconds_or_none,
    metavar="SPAN",
    help="How long all of it may take.  [default: 10m]",
)
@click.option("--all", "show_all", is_flag=True, help="Show every check, not only what is wrong.")
@output_option
def check(
    package: str, seed: int, limit_s: float | None, *, show_all: bool, output: Output
) -> None:
    """Check an installed accelerator, named by itself or by its package, against the contract of its hooks.

    Results bit for bit on usual, odd and random shapes with random and extreme numbers, every knob; a yes that does not
    compile, a no without a reason; text and back; a fresh process; the CPU with the same result. The exit code is 1
    if anything is wrong. It runs in a process of its own, so that a hook that hangs or crashes is a finding too.

    \b
    JSON: {"accelerator", "passed", "checks": [{"check", "ok", "failed", "skipped"}],
          "findings": [{"check", "subject", "problem", "skipped"}]}
    """  # noqa: D301 - click's mark
    from farm.porting.checking import LIMIT_S, check_apart

    name = _name_of(package)
    with output.steps(f"checking {name}") as steps:

        def tell(finding: Finding) -> None:
            if finding.problem:
                steps.say(str(finding))

        report = check_apart(name, seed, LIMIT_S if limit_s is None else limit_s, tell)
    shown = report.findings if show_all else report.failed
    lines = [str(finding) for finding in shown[: None if show_all else SHOWN]]
    if len(shown) > len(lines):
        lines.append(f"... and {len(shown) - len(lines)} more")
    counts = list(report.counts())
    lines.append(
        table(("CHECK", "OK", "FAILED", "SKIPPED"), [tuple(map(str, it)) for it in counts])
    )
    lines.append(
        f"{name}: {'keeps its contract' if report.passed else 'does NOT keep its contract'}"
    )
    names = ("check", "ok", "failed", "skipped")
    value = {
        "accelerator": name,
        "passed": report.passed,
        "checks": [dict(zip(names, it, strict=True)) for it in counts],
        "findings": [asdict(it) for it in report.findings],
    }
    output.result(value, "\n".join(lines))
    if not report.passed:
        raise click.exceptions.Exit(1)


def _all_names() -> list[str]:
    from farm.accel.discovery import BUILT_IN
    from farm.target.installed import installed

    return sorted({*BUILT_IN, *(it.name for it in installed())})


def _name_of(package: str) -> str:
    from farm.target.installed import installed

    key = package.lower().replace("_", "-")
    brought = [it.name for it in installed() if it.package.lower().replace("_", "-") == key]
    if package in _all_names() or not brought:
        return package
    if len(brought) > 1:
        raise InvalidInput(f"package {package}: brings {', '.join(brought)}; name one of them")
    return brought[0]


def _described(name: str) -> dict[str, object]:
    from farm.accel.asking import ask
    from farm.accel.discovery import BUILT_IN, known
    from farm.target.installed import find_installed

    found = known(name) if name in BUILT_IN else find_installed(name)
    assert found is not None
    value: dict[str, object] = {"name": name, "package": found.package, "version": found.version}
    try:
        facts = ask(name)
    except FarmError as error:
        return value | {"ways": [], "configs": [], "timing": "", "problem": error.message}
    about = {"ways": list(facts.ways), "configs": list(facts.configs), "timing": facts.timing}
    return value | about | {"problem": ""}


def _words(value: dict[str, object]) -> tuple[str, str, str]:
    ways, configs = value["ways"], value["configs"]
    assert isinstance(ways, list)
    assert isinstance(configs, list)
    more = [f"{len(configs) - FEW} more"] if len(configs) > FEW else []
    return ", ".join(ways), ", ".join([*configs[:FEW], *more]), str(value["timing"])
