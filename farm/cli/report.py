"""``farm report``: a page about what tunings recorded."""

from __future__ import annotations

from pathlib import Path

import click

from farm.cli.files import EXISTING_FILE
from farm.cli.output import Output, output_option


@click.command("report")
@click.argument("database", metavar="DB", type=EXISTING_FILE)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The page to write.",
)
@click.option("--title", default="Tuning", show_default=True)
@output_option
def command(database: Path, out: Path, title: str, output: Output) -> None:
    """Write one HTML page with plots: progress, landscape, samples, noise, roofline. It needs nothing else.

    \b
    Example:
      farm report tune.db --out report.html

    \b
    JSON: {"path"}
    """  # noqa: D301 - click's mark
    from farm.core.files import check_apart, replacing
    from farm.tune import Records
    from farm.tune.report import report

    check_apart(out, database)
    with Records(database, create=False) as records:
        page = report(records, title=title)
    with replacing(out, private=False) as file:
        file.write(page.encode(errors="replace"))
    output.result({"path": str(out)}, str(out))
