"""``farm inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from farm.cli.files import EXISTING_FILE
from farm.cli.output import Output, output_option, size, table


@click.command("inspect")
@click.argument("file", type=EXISTING_FILE)
@output_option
def command(file: Path, output: Output) -> None:
    """Show what is in an artifact, without executing any of it.

    \b
    Example:
      farm inspect kernels.farm

    \b
    JSON: {"format", "abi", "sha256", "size_bytes", "target_host", "targets", "symbols",
           "sections": [{"kind", "symbol", "target", "target_id", "format", "format_version",
           "requires", "toolchain", "size_bytes", "sha256"}], "skipped_sections"}
    """  # noqa: D301 - click's mark
    from farm.artifact import inspect_bytes
    from farm.cli.files import read_artifact

    about = inspect_bytes(read_artifact(file))
    output.result(about, _text(file, about))


def _text(file: Path, about: dict[str, Any]) -> str:
    lines = [
        f"{file}: farm artifact, format {about['format']}, ABI {about['abi']}",
        f"digest       sha256:{about['sha256']}/{about['size_bytes']}",
        f"size         {about['size_bytes']} bytes",
        f"target host  {about['target_host']}",
        "",
        "functions",
        *(f"  {name}({_params(params)})" for name, params in about["symbols"].items()),
        "",
        sections_text(about["sections"]),
    ]
    toolchains = sorted({section["toolchain"] for section in about["sections"]})
    lines += ["", *(f"toolchain    {toolchain}" for toolchain in toolchains)]
    if about["skipped_sections"]:
        lines.append(f"{about['skipped_sections']} sections of kinds unknown here were skipped")
    return "\n".join(lines)


def sections_text(sections: list[dict[str, Any]]) -> str:
    """Return a table of sections as `farm.inspect_bytes` describes them."""
    rows = [
        (
            section["symbol"],
            section["kind"],
            section["target"],
            f"{section['format']} {section['format_version']}",
            size(section["size_bytes"]),
            section["sha256"][:12],
            _short(section["requires"]),
        )
        for section in sections
    ]
    return table(("SYMBOL", "KIND", "TARGET", "FORMAT", "SIZE", "SHA-256", "REQUIRES"), rows)


def _params(params: list[dict[str, Any]]) -> str:
    return ", ".join(f"{p['role']} {p['name']}: {p['dtype']}{p['shape']}" for p in params)


def _short(requires: list[str]) -> str:
    """Return the architecture, or whatever comes first, and how many more there are: JSON has them all."""
    first = sorted(requires, key=lambda need: not need.startswith("arch:"))[:1]
    return " ".join([*first, *([f"+{len(requires) - 1}"] if len(requires) > 1 else [])])
