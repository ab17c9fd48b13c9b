"""``farm graph``: whole networks, cut up among an accelerator and the CPU.

Owns: those commands, and the check of a result against the reference. Does not own: graphs (`farm.graph`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.files import EXISTING_FILE, writable_folder
from farm.cli.output import Output, others_code, output_option
from farm.core.limits import MAX_REPEAT
from farm.errors import InvalidGraph, InvalidInput, KernelFailed

if TYPE_CHECKING:
    import numpy.typing as npt

    from farm.graph import Backend, Graph, GraphBuild
    from farm.graph.backend import Option, Options
    from farm.tune import Records

    Array = npt.NDArray[Any]

_Command = TypeVar("_Command", bound=Callable[..., Any])

FLOAT_RTOL, HALF_RTOL, FLOAT_ATOL = 1e-3, 2e-2, 1e-5
"""How far float outputs may be from the reference, which computes in float64; floats of 16 bits further."""


@click.group("graph")
def command() -> None:
    """Show, place and run graphs of operators.

    FILE is a graph's JSON document, or Python that defines `graph` and, if it likes, `backends`.

    \b
    Example:
      farm graph show network.py
      farm graph place network.py --backend ea
      farm graph run network.py --backend ea --device kind=ea --random 1
    """  # noqa: D301 - click's mark


def placement_options(command: _Command) -> _Command:
    """Add what says who may take part of a graph."""
    options = (
        click.option(
            "--backend",
            "names",
            metavar="NAME",
            multiple=True,
            help="Let it take what it can: one of the file's own, an installed accelerator, a target; may be repeated."
            "  [default: all of the file's own]",
        ),
        click.option(
            "--option",
            "settings",
            metavar="BACKEND.KNOB=VALUE",
            multiple=True,
            help="For a backend's code generator; may be repeated.",
        ),
        click.option(
            "--strict", is_flag=True, help="Fail where a claimed region does not compile."
        ),
        click.option(
            "--only-faster",
            is_flag=True,
            help="Leave on the CPU what is predicted no faster elsewhere.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@command.command("show")
@click.argument("file", type=EXISTING_FILE)
@output_option
def show_file(file: Path, output: Output) -> None:
    """Print a graph; as JSON it is the document that the other commands read.

    \b
    JSON: {"format", "version", "name", "inputs", "outputs", "types", "constants", "nodes"}
    """  # noqa: D301 - click's mark
    import json

    from farm.graph import to_json

    graph, _ = read_graph(file)
    output.result(json.loads(to_json(graph)), str(graph))


@command.command("place")
@click.argument("file", type=EXISTING_FILE)
@placement_options
@output_option
def place_file(
    file: Path,
    names: tuple[str, ...],
    settings: tuple[str, ...],
    *,
    strict: bool,
    only_faster: bool,
    output: Output,
) -> None:
    """Say which node would run where, and why. Nothing is built.

    \b
    JSON: {"graph", "nodes": [{"node", "operator", "backend", "region", "reason"}],
           "regions": [{"region", "backend", "target", "nodes", "bytes_in", "bytes_out", "predicted_s",
           "measured_s", "options"}], "problems"}
    """  # noqa: D301 - click's mark
    from farm.graph import partition, placement

    graph, own = read_graph(file)
    with others_code():
        parts = partition(
            graph,
            _backends(names, own),
            options=_options(settings),
            strict=strict,
            only_faster=only_faster,
        )
    report = placement(parts)
    output.result(report.to_json(), report.to_text())


@command.command("run")
@click.argument("file", type=EXISTING_FILE)
@placement_options
@click.option("--device", "selector", default="", help="Which devices will do; empty: any.")
@click.option(
    "--input",
    "inputs",
    metavar="NAME=FILE.npy",
    multiple=True,
    help="The array of one input; may be repeated.",
)
@click.option(
    "--random", "seed", metavar="SEED", type=click.IntRange(min=0), help="Fill the others."
)
@click.option(
    "--repeat",
    type=click.IntRange(1, MAX_REPEAT),
    default=10,
    show_default=True,
    help="Timed calls of each region.",
)
@click.option(
    "--cpu",
    "cpus",
    metavar="TARGET",
    multiple=True,
    help="Build everything for this CPU; may be repeated.  [default: llvm]",
)
@click.option(
    "--tuned",
    metavar="DB",
    type=EXISTING_FILE,
    help="Use the best schedules in this database for the regions' functions.",
)
@click.option(
    "--save",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each output to DIR/NAME.npy, and the artifact to DIR/GRAPH.farm.",
)
@tracker_option
@output_option
def run_file(
    file: Path,
    names: tuple[str, ...],
    settings: tuple[str, ...],
    selector: str,
    inputs: tuple[str, ...],
    seed: int | None,
    repeat: int,
    cpus: tuple[str, ...],
    tuned: Path | None,
    save: Path | None,
    tracker: str | None,
    *,
    strict: bool,
    only_faster: bool,
    output: Output,
) -> None:
    """Build a graph on the farm as one artifact, run it on a device, compare it with the reference, time its regions.

    Integer outputs have to be equal; floats may be off by 0.1 %, those of 16 bits by 2 %.

    \b
    JSON: {"artifact", "device", "agrees", "outputs": as in `farm run`, "placement": as in `farm graph place`}
    """  # noqa: D301 - click's mark
    from farm.graph import GraphModule, build_graph, execute, placement

    graph, own = read_graph(file)
    options = _options(settings)
    arrays = _inputs(graph, inputs, seed)
    folder = writable_folder(save) if save is not None else None
    wanted = execute(graph, arrays)
    with (
        output.steps("building") as steps,
        _records(tuned) as records,
        connect(tracker) as client,
        others_code(),
    ):
        backends = _backends(names, own)
        steps.say(f"building {graph.name}")
        built = build_graph(
            graph,
            backends,
            cpus=cpus or ("llvm",),
            builder=client.build,
            tuned=records,
            options=options,
            strict=strict,
            only_faster=only_faster,
        )
        steps.say("waiting for a device")
        with client.acquire(selector, holder="farm graph run") as session:
            steps.say(f"running on {session.device.device_id}")
            module = GraphModule(built, session.load(built.artifact))
            found = module(arrays)
            measured = module.measure(arrays, repeat)
            device_id = session.device.device_id
    report = placement(built.partition, measured)
    agrees = [_agrees(*pair) for pair in zip(found, wanted, strict=True)]
    value, text = _result(built, device_id, found, agrees, folder)
    output.result({**value, "placement": report.to_json()}, f"{text}\n\n{report.to_text()}")
    if not all(agrees):
        raise KernelFailed(
            f"graph {graph.name}: {agrees.count(False)} outputs differ from the reference on {device_id}; "
            f"look at the placement"
        )


def read_graph(path: Path) -> tuple[Graph, Sequence[Backend]]:
    """Return a file's graph and its own backends.

    Raises
    ------
    InvalidGraph
        The document is none, or breaks a rule.
    InvalidInput
        The Python file fails or defines no graph; the message names the line.
    """
    from farm.cli.source import run_file
    from farm.core.files import read_regular, regular_size
    from farm.graph import Graph, from_json
    from farm.graph.document import MAX_JSON_BYTES

    if path.suffix != ".py":
        if regular_size(path) > MAX_JSON_BYTES:
            raise InvalidInput(
                f"{path}: too large; use a document of at most {MAX_JSON_BYTES} bytes"
            )
        try:
            return from_json(read_regular(path)), ()
        except InvalidGraph as error:
            raise InvalidGraph(f"{path}: {error.message}") from error
    names = run_file(path)
    graph, backends = names.get("graph"), names.get("backends", ())
    if not isinstance(graph, Graph):
        raise InvalidInput(f"{path}: defines no `graph`; make one with farm.graph.GraphBuilder")
    if not isinstance(backends, list | tuple):
        raise InvalidInput(f"{path}: `backends` is no list; leave it out, or list backends")
    return graph, backends


def _backends(names: Sequence[str], own: Sequence[Backend]) -> Sequence[Backend]:
    return [_own(name, own) or _installed(name) for name in names] if names else own


def _own(name: str, own: Sequence[Backend]) -> Backend | None:
    """Return the file's backend of a name; one that cannot even say its name is none."""
    for backend in own:
        with contextlib.suppress(Exception):
            if backend.name == name:
                return backend
    return None


def _installed(name: str) -> Backend:
    """Return the backend of an accelerator that a package brings, else one for a target."""
    from farm.accel.discovery import load, names
    from farm.graph import TargetBackend

    if name in names():
        backend: Backend | None = load(name).accelerator.backend
        if backend is not None:
            return backend
    return TargetBackend(name)


@contextlib.contextmanager
def _records(path: Path | None) -> Iterator[Records | None]:
    """Open a database of records, if one is named."""
    if path is None:
        yield None
        return
    from farm.tune import Records

    with Records(path, create=False) as records:
        yield records


def _options(settings: Sequence[str]) -> dict[str, Options]:
    found: dict[str, dict[str, Option]] = {}
    for text in settings:
        match = re.fullmatch(r"(\w+)\.([\w-]+)=(.*)", text)
        if match is None:
            raise InvalidInput(f"--option {text}: malformed; use BACKEND.KNOB=VALUE")
        found.setdefault(match[1], {})[match[2]] = _value(match[3])
    return dict(found)


def _value(text: str) -> Option:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _inputs(graph: Graph, inputs: Sequence[str], seed: int | None) -> list[Array]:
    from farm.artifact import ParamSpec, Signature
    from farm.cli.run import input_arrays

    params, plain = [], _plain_names(graph.inputs)
    for name in graph.inputs:
        kind = graph.types[name]
        params.append(ParamSpec(plain[name], str(kind.dtype), kind.shape, "input"))
    return input_arrays(Signature(tuple(params)), inputs, seed)


def _plain_names(values: Sequence[str]) -> dict[str, str]:
    """Return values' names as C identifiers, each another one, which files and options are named after."""
    found: dict[str, str] = {}
    for value in values:
        plain = re.sub(r"\W", "_", value, flags=re.ASCII)
        wanted = f"_{plain}" if plain[0].isdigit() else plain
        number = 1
        while (name := wanted if number == 1 else f"{wanted}_{number}") in found.values():
            number += 1
        found[value] = name
    return found


def _agrees(found: Array, wanted: Array) -> bool:
    import numpy as np

    from farm.core.elements import is_float

    if is_float(found.dtype):
        rtol = HALF_RTOL if found.dtype.itemsize == 2 else FLOAT_RTOL
        return bool(np.allclose(found.astype(np.float64), wanted, rtol, FLOAT_ATOL, equal_nan=True))
    return bool(np.array_equal(found, wanted))


def _result(
    built: GraphBuild,
    device_id: str,
    found: Sequence[Array],
    agrees: Sequence[bool],
    folder: Path | None,
) -> tuple[dict[str, Any], str]:
    from farm.cli.run import outputs_json, outputs_lines, save_outputs

    names = list(_plain_names(built.graph.outputs).values())
    paths = save_outputs(folder, names, found) if folder is not None else {}
    if folder is not None:
        built.artifact.save(folder / f"{_plain_names([built.graph.name])[built.graph.name]}.farm")
    outputs = outputs_json(names, found, paths)
    value = {
        "artifact": str(built.artifact.digest),
        "device": device_id,
        "agrees": all(agrees),
        "outputs": [{**out, "agrees": ok} for out, ok in zip(outputs, agrees, strict=True)],
    }
    verdict = "agrees with the reference" if all(agrees) else "DIFFERS FROM THE REFERENCE"
    head = (
        f"graph {built.graph.name} on {device_id}, one artifact {built.artifact.digest}: {verdict}"
    )
    return value, "\n".join([head, *outputs_lines(outputs, None)])
