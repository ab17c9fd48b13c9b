"""``farm result``, and showing the result of a job for other commands.

Owns: names of outputs, where they are saved, what is shown. Does not own: what is shown of an array (`farm.cli.run`).

Invariant: a job that did not pass has no result; its failure is the command's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.cli.compared import show_comparison
from farm.cli.connection import connect, tracker_option
from farm.cli.files import writable_folder
from farm.cli.job import headline, job_argument, job_json
from farm.cli.output import Output, output_option
from farm.cli.run import outputs_json, outputs_lines, save_outputs, timing_json
from farm.cli.wait import watch
from farm.errors import ArtifactError, NotFound, StillRunning

if TYPE_CHECKING:
    from farm.client import Client, Job, JobResult

save_option = click.option(
    "--save",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each output to DIR/NAME.npy.",
)


@click.command("result")
@job_argument
@click.option("--wait", "waits", is_flag=True, help="Wait until the job has ended.")
@save_option
@tracker_option
@output_option
def command(
    job_id: str, waits: bool, folder: Path | None, tracker: str | None, output: Output
) -> None:
    """Fetch what a job gave: its outputs and times.

    A job that did not pass has no result: the command then fails with the job's error and exit code, as `farm wait`
    does. One that has not ended: exit code 4.

    \b
    Example:
      farm result job-4f0c21b79a3d5e80 --save outputs

    \b
    JSON: {"job": as in `farm get`, "function", "target", "device_id",
           "outputs": [{"name", "dtype", "shape", "min", "max", "mean", "first", "path"}],
           "timing": null or {"timing_class", "median_s", "min_s", "samples_ns"}}
          of a comparison as `farm compare`
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        job = client.job(job_id)
        info = watch(job, output) if waits else job.status()
        if not info.ended:
            raise StillRunning(
                f"job {job_id}: it has not ended (it is {info.state}); add --wait, or ask `farm why {job_id}`"
            )
        if info.failure is not None:
            raise info.failure
        show(client, job, folder, output)


def show(client: Client, job: Job, folder: Path | None, output: Output) -> None:
    """Fetch the result of a job that passed, save and show it."""
    if folder is not None:
        writable_folder(folder)
    result = job.result()
    if result.comparison is not None:
        show_comparison(result, output)
        return
    names = _names(job, result)
    paths = save_outputs(folder, names, result.outputs) if folder is not None else {}
    devices = client.devices(f"device_id={result.device_id}") if result.device_id else []
    value: dict[str, Any] = {
        "job": job_json(result.job),
        "function": result.job.symbol,
        "target": result.target,
        "device_id": result.device_id,
        "outputs": outputs_json(names, result.outputs, paths),
        "timing": timing_json(
            result.samples_ns, devices[0].timing_class if devices else "unspecified"
        ),
    }
    head = f"{headline(result.job)}\n{result.job.symbol}, built for {result.target}"
    output.result(value, "\n".join([head, *outputs_lines(value["outputs"], value["timing"])]))


def _names(job: Job, result: JobResult) -> list[str]:
    """Return the names of the outputs; numbers if the farm has the artifact no more."""
    numbers = [f"output{index}" for index in range(len(result.outputs))]
    try:
        signature = job.artifact().symbols.get(result.job.symbol)
    except (NotFound, ArtifactError):
        return numbers
    names = [spec.name for spec in signature.outputs] if signature is not None else []
    return names if len(names) == len(numbers) else numbers
