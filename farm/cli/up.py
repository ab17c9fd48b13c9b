"""``farm up``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.cli.devices import device_json, devices_text
from farm.cli.files import EXISTING_FILE, writable_folder
from farm.cli.output import Output, output_option, table
from farm.cli.spans import seconds, size_bytes

if TYPE_CHECKING:
    from farm.client import AgentInfo
    from farm.testing import EmbeddedFarm

DEFAULT_LISTEN = "127.0.0.1:7460"
EXIT_TERMINATED = 128 + 15


@click.command("up")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="Where the tracker listens; port 0: any.",
)
@click.option(
    "--fleet",
    metavar="FILE",
    type=EXISTING_FILE,
    help="Which agents Ray manages.  [default: one for each kind of device]",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keeps the farm's data.  [default: kernel-farm in XDG_STATE_HOME, else ~/.local/state]",
)
@click.option(
    "--store-limit",
    "store_bytes",
    callback=size_bytes,
    metavar="SIZE",
    help="What all stored blobs may take, such as 20G; what was not used for longest goes first, never what a build, "
    "job, kept result or session needs.  [default: half of the disk, at most 64G]",
)
@click.option(
    "--keep-jobs",
    "jobs_s",
    callback=seconds,
    metavar="SPAN",
    help="How long an ended job is kept, with log and results.  [default: 1d]",
)
@click.option(
    "--keep-records",
    "records_s",
    callback=seconds,
    metavar="SPAN",
    help="How long builds, events and unused cached modules are kept.  [default: 30d]",
)
@click.option(
    "--keep-devices",
    "devices_s",
    callback=seconds,
    metavar="SPAN",
    help="How long a device that is offline is kept, with its agent.  [default: 7d]",
)
@click.option("--no-ray", is_flag=True, help="Run the default agents as plain processes.")
@output_option
def command(
    listen: str,
    fleet: Path | None,
    data_dir: Path | None,
    store_bytes: int | None,
    jobs_s: float,
    records_s: float,
    devices_s: float,
    no_ray: bool,
    output: Output,
) -> None:
    """Run a farm on this machine until Ctrl-C or SIGTERM.

    Starts a tracker and agents, says when they are ready, and ends all of them together. SIGTERM is how a service
    manager ends it: exit code 0.

    The agents are those of --fleet; else one for this CPU, one for aarch64 under qemu and one for the accelerator.
    `farm agent --help` lists all kinds of device (armv7, riscv64, WebAssembly, OpenCL) and what each needs.

    \b
    Example:
      farm up
      farm up --store-limit 20G --keep-jobs 7d
      farm up --listen 127.0.0.1:0 --data-dir /tmp/farm --no-ray

    \b
    JSON, as soon as the farm is ready: {"address", "data_dir", "agents": [{"agent_id", "observed",
          "builds", "device_ids", "hosted_by", "host"}], "devices": as in `farm devices`}
    """  # noqa: D301 - click's mark
    if fleet is not None and no_ray:
        raise click.UsageError("a fleet file is for Ray; drop --fleet or --no-ray")
    from farm.testing import EmbeddedFarm, Keeping

    folder = writable_folder(data_dir or default_data_dir())
    try:
        with output.steps("starting") as steps:
            embedded = EmbeddedFarm(
                "processes" if no_ray else "ray",
                fleet=fleet,
                data_dir=folder,
                listen=listen,
                keeping=Keeping(store_bytes, jobs_s or None, records_s or None, devices_s or None),
                progress=steps.say,
            )
            embedded.start()
        try:
            output.result(_json(embedded, folder), _text(embedded, folder))
            embedded.wait()
        finally:
            embedded.stop()
    except SystemExit as error:
        if error.code != EXIT_TERMINATED:
            raise


def default_data_dir() -> Path:
    """Return where a farm of this user keeps its data."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return base / "kernel-farm"


def _agent_json(agent: AgentInfo) -> dict[str, object]:
    return {
        "agent_id": agent.agent_id,
        "observed": agent.observed,
        "builds": list(agent.builds),
        "device_ids": list(agent.device_ids),
        "hosted_by": agent.hosted_by,
        "host": agent.host,
    }


def _json(embedded: EmbeddedFarm, folder: Path) -> dict[str, object]:
    return {
        "address": embedded.address,
        "data_dir": str(folder),
        "agents": [_agent_json(agent) for agent in embedded.agents],
        "devices": [device_json(device) for device in embedded.devices],
    }


def _text(embedded: EmbeddedFarm, folder: Path) -> str:
    rows = [
        (agent.agent_id, agent.hosted_by, ",".join(agent.builds), ",".join(agent.device_ids))
        for agent in embedded.agents
    ]
    default = embedded.address == DEFAULT_LISTEN
    option = "" if default else f" --tracker {embedded.address}"
    return "\n".join(
        [
            f"A farm serves at {embedded.address}; its data is in {folder}",
            "",
            table(("AGENT", "HOSTED BY", "BUILDS", "DEVICES"), rows),
            "",
            devices_text(embedded.devices),
            "",
            "In another terminal:",
            f"  farm devices{option}",
            f"  farm build kernels.py --out kernels.farm{option}",
            f"  farm run kernels.farm my_kernel --random 1{option}",
            "",
            "Ctrl-C ends the farm.",
        ]
    )
