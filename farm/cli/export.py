"""``farm export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli.files import EXISTING_FILE
from farm.cli.output import Output, output_option

if TYPE_CHECKING:
    from farm.exporting import Exported


@click.command("export")
@click.argument("file", metavar="FILE.farm", type=EXISTING_FILE)
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="What to write: NAME.so, NAME.a, NAME.wasm, or any other name for a program.",
)
@click.option("--target", help="Whose functions.  [default: the only CPU of the artifact]")
@click.option(
    "--kind",
    type=click.Choice(["shared", "static", "executable", "wasm"]),
    help="What to make, if the name does not say it.",
)
@click.option(
    "--header",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The C header.  [default: beside it, with .h]",
)
@output_option
def command(
    file: Path,
    out: Path,
    target: str | None,
    kind: str | None,
    header: Path | None,
    output: Output,
) -> None:
    """Write a target's functions as a library or program that needs no Python, and a C header for it.

    The header declares each function as it is called everywhere, and NAME_call, which takes plain pointers. A program
    calls its functions on raw files, one for each parameter; without arguments it lists them.

    \b
    Example:
      farm export kernels.farm --target raspberrypi-4b --out libkernels.so
      farm export saxpy.farm --out saxpy
      ./saxpy saxpy a.bin x.bin y.bin

    \b
    JSON: {"path", "header", "kind", "target", "symbols"}
    """  # noqa: D301 - click's mark
    for place in filter(None, (out, header)):
        if not place.absolute().parent.is_dir():
            raise click.BadParameter(f"folder {place.parent} does not exist", param_hint="--out")
    from farm.artifact import Artifact
    from farm.cli.files import read_artifact
    from farm.exporting import export

    made = export(Artifact.from_bytes(read_artifact(file)), out, target, kind=kind, header=header)
    output.result(_json(made), _text(made))


def _json(made: Exported) -> dict[str, object]:
    return {
        "path": str(made.path),
        "header": str(made.header),
        "kind": made.kind.value,
        "target": made.target,
        "symbols": list(made.symbols),
    }


def _text(made: Exported) -> str:
    symbols = ", ".join(made.symbols)
    return f"{made.path}: {made.kind.value} for {made.target}, with {symbols}\n{made.header}"
