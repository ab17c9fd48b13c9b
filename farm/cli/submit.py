"""``farm submit``.

Owns: its options. Does not own: inputs (`farm.cli.run`), waiting (`farm.cli.wait`), results (`farm.cli.result`).

Invariant: the same --key gives the same job, however often the command is run.
"""

from __future__ import annotations

from pathlib import Path

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.files import EXISTING_FILE, read_artifact, writable_folder
from farm.cli.job import headline, job_json
from farm.cli.output import Output, output_option
from farm.cli.result import save_option, show
from farm.cli.run import (
    check_number,
    input_arrays,
    input_options,
    signature_of,
)
from farm.cli.wait import watch
from farm.core.limits import (
    MAX_JOB_LIMIT_S,
    MAX_KEY_BYTES,
    MAX_PRIORITY,
    MAX_QUEUE_LIMIT_S,
    MAX_REPEAT,
    MAX_WAIT_S,
    MIN_LIMIT_S,
    MIN_QUEUE_LIMIT_S,
)


def _check_key(context: click.Context, param: click.Parameter, value: str) -> str:
    if len(value.encode()) > MAX_KEY_BYTES:
        raise click.BadParameter(f"longer than {MAX_KEY_BYTES} bytes")
    return value


@click.command("submit")
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
    type=click.FloatRange(MIN_LIMIT_S, MAX_JOB_LIMIT_S),
    callback=check_number,
    default=30.0,
    show_default=True,
    help="Time limit of the calls.",
)
@click.option(
    "--priority",
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    default=0,
    show_default=True,
    help="Higher runs first.",
)
@click.option("--account", default="", help="Who pays.  [default: your own]")
@click.option(
    "--key",
    "client_key",
    default="",
    callback=_check_key,
    help="Names this request: the same again is the same job.  [default: a new one]",
)
@click.option(
    "--queue-limit",
    "queue_limit_s",
    metavar="SECONDS",
    type=click.FloatRange(MIN_QUEUE_LIMIT_S, MAX_QUEUE_LIMIT_S),
    callback=check_number,
    default=86_400.0,
    show_default=True,
    help="End it if it has not started after so long.",
)
@click.option("--wait-for-device", is_flag=True, help="Queue it even if no device matches now.")
@click.option(
    "--cancel-when-unwatched", is_flag=True, help="Cancel it 60 s after the last waiter is gone."
)
@click.option("--wait", "waits", is_flag=True, help="Wait for the result and show it.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0, MAX_WAIT_S),
    help="With --wait: how long; the job goes on afterwards.",
)
@click.option(
    "--cancel-on-interrupt", is_flag=True, help="With --wait: Ctrl-C cancels the job too."
)
@save_option
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
    priority: int,
    account: str,
    client_key: str,
    queue_limit_s: float,
    wait_for_device: bool,
    cancel_when_unwatched: bool,
    waits: bool,
    timeout_s: float | None,
    cancel_on_interrupt: bool,
    folder: Path | None,
    tracker: str | None,
    output: Output,
) -> None:
    """Submit one run of a function as a job.

    The farm brings it to an end, whatever restarts meanwhile. Prints the id of the job as soon as the farm has it
    safe. With --wait: its result, and its exit code, as `farm result --wait` does.

    \b
    Example:
      farm submit kernels.farm layer --device kind=ea --random 1
      farm submit kernels.farm layer --random 1 --repeat 20 --wait --key nightly-417

    \b
    JSON: {"job_id", "client_key", "existed"}; with --wait as `farm result`, or if the job did not pass
          {"job": as in `farm get`}
    """  # noqa: D301 - click's mark
    if not waits and (timeout_s is not None or cancel_on_interrupt or folder is not None):
        raise click.UsageError("--timeout, --cancel-on-interrupt and --save go with --wait")
    from farm.artifact import Artifact

    artifact = Artifact.from_bytes(read_artifact(file))
    arrays = input_arrays(signature_of(artifact, function), inputs, seed)
    if folder is not None:
        writable_folder(folder)
    with connect(tracker) as client:
        job = client.submit(
            artifact,
            function,
            arrays,
            selector=selector,
            repeat=repeat,
            limit_s=limit_s,
            priority=priority,
            account=account,
            client_key=client_key,
            wait_for_device=wait_for_device,
            queue_limit_s=queue_limit_s,
            cancel_when_unwatched=cancel_when_unwatched,
        )
        if not waits:
            existed = " (submitted before)" if job.existed else ""
            click.echo(f"`farm wait {job.job_id}` waits for it{existed}", err=True)
            value = {"job_id": job.job_id, "client_key": job.client_key, "existed": job.existed}
            output.result(value, job.job_id)
            return
        info = watch(job, output, timeout_s, cancel_on_interrupt=cancel_on_interrupt)
        if info.failure is not None:
            output.result({"job": job_json(info)}, headline(info))
            raise info.failure
        show(client, job, folder, output)
