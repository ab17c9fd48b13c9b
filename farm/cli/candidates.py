"""Candidates and workloads on a command line.

Owns: ``FILE.farm[:FUNCTION]``, and the options of a workload. Does not own: what is done with them.

Invariant: everything is read and checked before a farm is asked for anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farm.cli.files import read_artifact
from farm.cli.output import encodable
from farm.errors import InvalidInput
from farm.measuring.values import MAX_NAME_BYTES

if TYPE_CHECKING:
    from farm.client import Candidate, Workload

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
ROOM_BYTES = 6
"""Of a name, for its number."""
CACHES = ("warm", "cold", "rotate")


def workload_options(command: _Command) -> _Command:
    """Add ``--random``, ``--reference``, ``--cache`` and ``--sample``, which arrive as
    ``seed``, ``reference``, ``cache`` and ``sample_s``.
    """  # noqa: D205 - one sentence
    options = (
        click.option(
            "--random",
            "seed",
            metavar="SEED",
            type=click.IntRange(0, (1 << 63) - 1),
            default=0,
            show_default=True,
            help="Of the inputs, which the device makes.",
        ),
        click.option(
            "--reference",
            metavar="FILE.farm[:FUNCTION]",
            help="What is right: a function of the same arrays, perhaps of wider types.",
        ),
        click.option(
            "--cache",
            type=click.Choice(CACHES),
            default="warm",
            show_default=True,
            help="What caches hold before a sample.",
        ),
        click.option(
            "--sample",
            "sample_s",
            metavar="SECONDS",
            type=click.FloatRange(0.0001, 0.05),
            default=0.002,
            show_default=True,
            help="How long a sample lasts at least.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def read_candidate(text: str, key: str) -> Candidate:
    """Return the candidate that ``FILE.farm[:FUNCTION]`` names.

    Raises
    ------
    InvalidInput
        There is no such file or function, or the file has several and none is named.
    """
    from farm.artifact import Artifact
    from farm.client import Candidate

    path, symbol = _parts(text)
    artifact = Artifact.from_bytes(read_artifact(path))
    known = list(artifact.symbols)
    if not symbol and len(known) == 1:
        symbol = known[0]
    if symbol not in known:
        wrong = f"no function {symbol}" if symbol else "several functions"
        raise InvalidInput(
            f"{text}: {wrong}; name one of {', '.join(known) or 'none'} as {path}:FUNCTION"
        )
    return Candidate(key, artifact, symbol=symbol)


def keys_of(texts: Sequence[str]) -> list[str]:
    """Return a name for each text, with a number where one comes again; of a long one the end."""
    names = [_cut(encodable(text)) for text in texts]
    return [
        name if names.count(name) == 1 else f"{name}#{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]


def _cut(text: str) -> str:
    most = MAX_NAME_BYTES - ROOM_BYTES
    data = text.encode()
    return text if len(data) <= most else f"...{data[3 - most :].decode(errors='ignore')}"


def read_workload(seed: int, reference: str | None) -> Workload:
    """Return the workload that options say; raises as `read_candidate`."""
    from farm.artifact import Artifact
    from farm.client import Workload

    if reference is None:
        return Workload(seed=seed)
    found = read_candidate(reference, "reference")
    assert isinstance(found.what, Artifact), "a file gives an artifact"
    return Workload(seed=seed, reference=found.what, reference_symbol=found.symbol)


def _parts(text: str) -> tuple[Path, str]:
    path, colon, symbol = text.rpartition(":")
    if colon and _SYMBOL.fullmatch(symbol) and not Path(text).exists():
        return Path(path), symbol
    return Path(text), ""
