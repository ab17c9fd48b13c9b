"""``farm run``."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.files import EXISTING_FILE, read_array, read_artifact, writable_folder
from farm.cli.output import Output, output_option, seconds
from farm.core.limits import MAX_LIMIT_S, MAX_REPEAT, MAX_WAIT_S
from farm.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    import numpy.typing as npt

    from farm.artifact import Artifact, ParamSpec, Signature
    from farm.client import Client, RunOutcome

    Array = npt.NDArray[Any]

_Command = TypeVar("_Command", bound=Callable[..., Any])

FIRST_ELEMENTS = 8
MAX_RANDOM = 1000
NOTES = {
    "native": "real hardware",
    "emulated": "emulated: says nothing of the device's speed",
    "simulated": "simulated: the time of the simulation, not of the device",
}


def check_number(context: click.Context, param: click.Parameter, value: float) -> float:
    """Refuse NaN, which is in every range."""
    if math.isnan(value):
        raise click.BadParameter("nan is no time")
    return value


def input_options(command: _Command) -> _Command:
    """Add ``--input`` and ``--random``, which arrive as the arguments ``inputs`` and ``seed``."""
    inputs = click.option(
        "--input",
        "inputs",
        metavar="NAME=FILE.npy",
        multiple=True,
        help="The array of one input; may be repeated.",
    )
    seed = click.option(
        "--random",
        "seed",
        metavar="SEED",
        type=click.IntRange(min=0),
        help="Fill the other inputs: floats in [-1, 1), integers up to 1000 either way.",
    )
    return inputs(seed(command))


@click.command("run")
@click.argument("file", metavar="FILE.farm", type=EXISTING_FILE)
@click.argument("function")
@click.option("--device", "selector", default="", help="Which devices will do; empty: any.")
@input_options
@click.option(
    "--repeat",
    type=click.IntRange(0, MAX_REPEAT),
    default=0,
    show_default=True,
    help="Timed calls after the first.",
)
@click.option(
    "--limit",
    "limit_s",
    metavar="SECONDS",
    type=click.FloatRange(0, MAX_LIMIT_S, min_open=True),
    callback=check_number,
    default=30.0,
    show_default=True,
    help="Time limit of the calls.",
)
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(0, MAX_WAIT_S),
    callback=check_number,
    default=60.0,
    show_default=True,
    help="How long to wait for a device that is free.",
)
@click.option(
    "--lease",
    "lease_id",
    metavar="LEASE",
    help="Use the device that `farm acquire` took, instead of --device and --wait.",
)
@click.option(
    "--save",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each output to DIR/NAME.npy.",
)
@tracker_option
@output_option
def command(
    file: Path,
    function: str,
    selector: str,
    inputs: tuple[str, ...],
    seed: int | None,
    repeat: int,
    limit_s: float,
    wait_s: float,
    lease_id: str | None,
    save: Path | None,
    tracker: str | None,
    output: Output,
) -> None:
    """Run one function of an artifact on a device, and time it.

    \b
    Example:
      farm run kernels.farm double --device arch=aarch64 --input x=x.npy --repeat 20
      farm run kernels.farm double --random 1 --save results

    \b
    JSON: {"function", "target", "device": as in `farm devices`,
           "outputs": [{"name", "dtype", "shape", "min", "max", "mean", "first", "path"}],
           "timing": null or {"timing_class", "median_s", "min_s", "samples_ns"}}
    Numbers that are not finite are the texts "nan", "inf" and "-inf".
    """  # noqa: D301 - click's mark
    if lease_id is not None and selector:
        raise click.UsageError("--lease names the device already; drop --device")
    from farm.artifact import Artifact

    artifact = Artifact.from_bytes(read_artifact(file))
    signature = signature_of(artifact, function)
    arrays = input_arrays(signature, inputs, seed)
    folder = writable_folder(save) if save is not None else None
    with output.steps("running") as steps, connect(tracker) as client:
        if lease_id is not None:
            outcome = _run_under(client, lease_id, artifact, function, arrays, repeat, limit_s)
        else:
            steps.say("waiting for a device")
            outcome = client.run(
                artifact,
                function,
                arrays,
                selector=selector,
                repeat=repeat,
                limit_s=limit_s,
                wait_s=wait_s,
                leased=lambda device: steps.say(f"running on {device.device_id}"),
            )
    names = [spec.name for spec in signature.outputs]
    paths = save_outputs(folder, names, outcome.outputs) if folder is not None else {}
    value = _json(function, names, outcome, paths)
    output.result(value, _text(value))


def _run_under(
    client: Client,
    lease_id: str,
    artifact: Artifact,
    function: str,
    arrays: list[Array],
    repeat: int,
    limit_s: float,
) -> RunOutcome:
    """Run on the device of a lease that goes on afterwards."""
    from farm.cli.lease import kept
    from farm.client import RunOutcome

    epoch, lease_token = kept(lease_id)
    with client.use(lease_id, epoch=epoch, lease_token=lease_token) as session:
        chosen = session.load(artifact)[function]
        outputs, samples_ns = session.call(chosen, arrays, repeat, limit_s)
        return RunOutcome(outputs, samples_ns, chosen.target, session.device)


def signature_of(artifact: Artifact, function: str) -> Signature:
    """Return a function's signature; raises NotFound if the artifact has no such function."""
    found = artifact.symbols.get(function)
    if found is None:
        known = ", ".join(artifact.symbols)
        raise NotFound(f"function {function}: not in this artifact; it has {known}")
    return found


def input_arrays(signature: Signature, inputs: Sequence[str], seed: int | None) -> list[Array]:
    """Return one array for each input, from ``NAME=FILE.npy`` or at random.

    Raises
    ------
    InvalidInput
        One is missing, given twice or unknown, or its file does not fit.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    files: dict[str, Path] = {}
    for text in inputs:
        name, equals, path = text.partition("=")
        if not equals or name not in specs or name in files:
            takes = ", ".join(map(str, specs.values())) or "no inputs"
            why = "given twice" if name in files else "not NAME=FILE.npy of an input"
            raise InvalidInput(f"--input {text}: {why}; the function takes {takes}")
        files[name] = Path(path)
    missing = [str(spec) for name, spec in specs.items() if name not in files]
    if missing and seed is None:
        raise InvalidInput(
            f"inputs: missing {', '.join(missing)}; pass --input NAME=FILE.npy, or --random SEED"
        )
    given = {name: read_array(path, specs[name]) for name, path in files.items()}
    return [given.get(name, random_array(spec, seed or 0)) for name, spec in specs.items()]


def random_array(spec: ParamSpec, seed: int) -> Array:
    """Return an array for a parameter that depends on its name, its type and the seed alone."""
    import numpy as np

    from farm.core.elements import is_float, numpy_dtype

    source = np.random.default_rng([seed, *spec.name.encode()])
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind == "b":
        return source.integers(0, 2, spec.shape).astype(dtype)
    if is_float(dtype):
        return source.uniform(-1, 1, spec.shape).astype(dtype)
    bounds = np.iinfo(dtype)
    low, high = max(bounds.min, -MAX_RANDOM), min(bounds.max, MAX_RANDOM)
    return source.integers(low, high, spec.shape, dtype, endpoint=True)


def save_outputs(folder: Path, names: Sequence[str], outputs: Sequence[Array]) -> dict[str, str]:
    """Write each output to ``FOLDER/NAME.npy``; returns the paths by name."""
    import numpy as np

    from farm.core.files import write_atomic

    paths = {}
    for name, array in zip(names, outputs, strict=True):
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        path = folder / f"{name}.npy"
        write_atomic(path, buffer.getvalue())
        paths[name] = str(path)
    return paths


def _json(
    function: str, names: Sequence[str], outcome: RunOutcome, paths: dict[str, str]
) -> dict[str, Any]:
    from farm.cli.devices import device_json

    return {
        "function": function,
        "target": outcome.target,
        "device": device_json(outcome.device),
        "outputs": outputs_json(names, outcome.outputs, paths),
        "timing": timing_json(outcome.samples_ns, outcome.device.timing_class),
    }


def outputs_json(
    names: Sequence[str], outputs: Sequence[Array], paths: dict[str, str]
) -> list[dict[str, Any]]:
    """Return what outputs hold, for JSON; `paths` says where some were saved."""
    return [
        {"name": name, **summary(array), "path": paths.get(name)}
        for name, array in zip(names, outputs, strict=True)
    ]


def timing_json(samples_ns: Sequence[int], timing_class: str) -> dict[str, Any] | None:
    """Return times for JSON, None if there are none."""
    if not samples_ns:
        return None
    return {
        "timing_class": timing_class,
        "median_s": statistics.median(samples_ns) / 1e9,
        "min_s": min(samples_ns) / 1e9,
        "samples_ns": list(samples_ns),
    }


def summary(array: Array) -> dict[str, Any]:
    """Return what an array holds, for JSON."""
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "min": _number(array.min().item()),
        "max": _number(array.max().item()),
        "mean": _number(float(array.mean(dtype=float))),
        "first": [_number(value) for value in array.ravel()[:FIRST_ELEMENTS].tolist()],
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _text(value: dict[str, Any]) -> str:
    device = value["device"]
    head = f"{value['function']} on {device['device_id']}, built for {value['target']}"
    return "\n".join([head, *outputs_lines(value["outputs"], value["timing"])])


def outputs_lines(outputs: Sequence[dict[str, Any]], timing: dict[str, Any] | None) -> list[str]:
    """Return for people what `outputs_json` and `timing_json` say."""
    lines = []
    for out in outputs:
        more = ", ..." if math.prod(out["shape"]) > FIRST_ELEMENTS else ""
        first = ", ".join(_short(number) for number in out["first"])
        facts = ", ".join(f"{key} {_short(out[key])}" for key in ("min", "max", "mean"))
        lines.append(f"  {out['name']}: {out['dtype']}{out['shape']}  {facts}")
        lines.append(f"    [{first}{more}]")
        if out["path"]:
            lines.append(f"    saved to {out['path']}")
    if timing:
        count = len(timing["samples_ns"])
        lines.append(
            f"  time: median {seconds(timing['median_s'])}, min {seconds(timing['min_s'])}, {count} calls "
            f"({NOTES.get(timing['timing_class'], timing['timing_class'])})"
        )
    return lines


def _short(number: float | str) -> str:
    return f"{number:.6g}" if isinstance(number, float) else str(number)
