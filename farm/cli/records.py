"""``farm records``: look at what tunings recorded, and pass it on.

Owns: those commands. Does not own: the database (`farm.tune.records`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli.files import EXISTING_FILE
from farm.cli.output import Output, output_option, table
from farm.cli.text import printable

if TYPE_CHECKING:
    from farm.tune.records import Key, Record

DATABASE = click.argument("database", metavar="DB", type=EXISTING_FILE)


@click.group("records")
def command() -> None:
    """Look at the records of tunings, and pass them on.

    \b
    Example:
      farm records list tune.db
      farm records export tune.db --out records.jsonl
      farm records import tune.db records.jsonl
      farm records best tune.db
    """  # noqa: D301 - click's mark


@command.command("list")
@DATABASE
@output_option
def list_(database: Path, output: Output) -> None:
    """List what was tuned: one line for each workload, target and kind of device.

    \b
    JSON: {"groups": [{"workload", "name", "target", "host", "cache", "toolchain", "trials", "outcomes", "best",
           "unit"}]}
    """  # noqa: D301 - click's mark
    from farm.tune.records import Records

    with Records(database, create=False) as records:
        names = {each.id: each.name for each in records.workloads()}
        groups: dict[Key, list[Record]] = {}
        for record in records.find():
            groups.setdefault(record.key, []).append(record)
    found = [_group(key, names.get(key.workload, ""), own) for key, own in groups.items()]
    rows = [
        (
            printable(str(each["name"])),
            printable(str(each["workload"])),
            printable(str(each["target"])),
            str(each["host"]),
            str(each["trials"]),
            _best(each),
        )
        for each in found
    ]
    header = ("NAME", "WORKLOAD", "TARGET", "HOST", "TRIALS", "BEST")
    output.result({"groups": found}, table(header, rows) if rows else "no records")


@command.command("best")
@DATABASE
@click.option("--workload", help="Only of this workload's id or function's name.")
@output_option
def best(database: Path, workload: str | None, output: Output) -> None:
    """Show the decision that stands for each workload, target and kind of device, with its schedule.

    \b
    JSON: {"winners": [{"workload", "name", "target", "host", "cache", "toolchain", "template", "configuration",
           "trace", "value", "unit", "ratio", "low", "high", "run", "wall", "replaces"}]}
    """  # noqa: D301 - click's mark
    from farm.cli.tuning_view import amount
    from farm.schedule import Trace
    from farm.tune.records import Records

    with Records(database, create=False) as records:
        names = {each.id: each.name for each in records.workloads()}
        standing = records.standing()
    chosen = [
        each
        for key, each in standing.items()
        if workload in (None, key.workload, names.get(key.workload))
    ]
    if workload is not None and not chosen:
        from farm.errors import NotFound

        known = ", ".join(sorted(set(names.values()))) or "none"
        raise NotFound(f"records: nothing was decided for {workload[:80]!r}; there is {known}")
    lines = []
    for each in chosen:
        name = printable(names.get(each.key.workload, each.key.workload))
        lines.append(f"{name} for {printable(each.key.target)}: {amount(each.value, each.unit)}")
        shown = ", ".join(f"{key}={value}" for key, value in each.configuration.items())
        lines.append(f"  {printable(shown)}")
        if each.trace:
            lines += [
                f"  {printable(line)}" for line in str(Trace.from_json(each.trace)).splitlines()
            ]
    winners = [{**each.to_plain(), "name": names.get(each.key.workload, "")} for each in chosen]
    output.result({"winners": winners}, "\n".join(lines) or "nothing was decided")


@command.command("export")
@DATABASE
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of JSON lines; Parquet if its name ends in .parquet.",
)
@output_option
def export(database: Path, out: Path, output: Output) -> None:
    """Write everything to a file that other programs read.

    \b
    JSON: {"path", "records"}
    """  # noqa: D301 - click's mark
    from farm.tune.records import Records
    from farm.tune.records.exchange import export_records

    with Records(database, create=False) as records:
        count = export_records(records, out)
    output.result({"path": str(out), "records": count}, f"{out}: {count} records")


@command.command("import")
@click.argument("database", metavar="DB", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("file", metavar="FILE", type=EXISTING_FILE)
@output_option
def import_(database: Path, file: Path, output: Output) -> None:
    """Add what `farm records export` wrote; what is known already is left out.

    \b
    JSON: {"path", "new"}
    """  # noqa: D301 - click's mark
    from farm.tune.records import Records
    from farm.tune.records.exchange import import_records

    with Records(database) as records:
        count = import_records(records, file)
    output.result({"path": str(database), "new": count}, f"{database}: {count} new records")


def _group(key: Key, name: str, own: list[Record]) -> dict[str, object]:
    outcomes: dict[str, int] = {}
    for record in own:
        outcomes[record.outcome.value] = outcomes.get(record.outcome.value, 0) + 1
    good = [record for record in own if record.value is not None]
    first = min(good, key=lambda record: record.value or 0.0, default=None)
    return {
        "workload": key.workload,
        "name": name,
        "target": key.target,
        "host": key.host,
        "cache": key.cache,
        "toolchain": key.toolchain,
        "trials": len(own),
        "outcomes": outcomes,
        "best": None if first is None else first.value,
        "unit": "" if first is None else first.unit,
    }


def _best(group: dict[str, object]) -> str:
    from farm.cli.tuning_view import amount

    value = group["best"]
    return amount(value if isinstance(value, float | int) else None, str(group["unit"]))
