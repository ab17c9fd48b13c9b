"""``farm demo``."""

from __future__ import annotations

import click

from farm.cli.output import Output, output_option

EXIT_FAILED = 1


@click.command("demo")
@click.option("--no-ray", is_flag=True, help="Run the agents as plain processes: starts faster.")
@output_option
def command(no_ray: bool, output: Output) -> None:
    """Build a small network for three devices over a farm, run it, check it.

    Starts a farm of its own, trains a network on handwritten digits, builds its integer layers for the accelerator and
    all of it for two CPUs, runs every held-out image on each device, compares with the plain interpreter, and ends the
    farm. Exit code 1: a device disagrees, or the accuracy is below 0.95.

    \b
    Example:
      farm demo
      farm demo -o json

    \b
    JSON: {"ok", "accuracy", "images", "artifact": {"digest", "size_bytes", "sections"},
           "builds": [{"target", "agent_id", "functions", "seconds"}],
           "devices": [{"device_id", "target", "agrees", "median_s", ...}], "skipped", "phases_s"}
    """  # noqa: D301 - click's mark
    from farm.demo import run_demo

    with output.steps("demo") as steps:
        result = run_demo(steps.say, use_ray=not no_ray)
    output.result(result.to_json(), result.to_text())
    if not result.ok:
        raise click.exceptions.Exit(EXIT_FAILED)
