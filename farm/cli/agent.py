"""``farm agent``."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import click

from farm.cli.files import writable_folder
from farm.cli.output import Output, output_option
from farm.cli.spans import seconds_or_none
from farm.core.ids import NAME
from farm.errors import InvalidInput
from farm.target import Target

MODULE = "farm_agents"


@click.command("agent")
@click.option(
    "--tracker", metavar="HOST:PORT", envvar="FARM_TRACKER", required=True, help="The tracker."
)
@click.option(
    "--agent-id", metavar="NAME", required=True, help="Unique in the farm, kept across restarts."
)
@click.option(
    "--builds",
    metavar="FAMILIES",
    multiple=True,
    help="Targets that it builds, such as llvm/aarch64,ea; may be repeated.",
)
@click.option(
    "--device",
    "devices",
    metavar="DRIVER[:ARGUMENT][@ID]",
    multiple=True,
    help="A device that it owns: cpu, qemu:ARCH[/CPU], wasm, opencl, ea:ea16; may be repeated.",
)
@click.option(
    "--slots", type=click.IntRange(0, 256), default=1, show_default=True, help="Builds at once."
)
@click.option(
    "--work-dir",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Cache and scratch.  [default: kernel-farm/agents/NAME in XDG_STATE_HOME]",
)
@click.option(
    "--sandbox",
    type=click.Choice(["auto", "required", "none"]),
    default="auto",
    show_default=True,
    help="Confine kernels and compilers: where it works, no work without, or never.",
)
@click.option(
    "--no-sandbox",
    "sandbox",
    flag_value="none",
    help="The same as --sandbox none: trusted use only.",
)
@click.option(
    "--canary-every",
    "canary_every_s",
    callback=seconds_or_none,
    metavar="SPAN",
    help="How often an idle device has to compute a known answer; also when it joins and after a crash. 0s: never.  "
    "[default: 5m]",
)
@output_option
def command(
    tracker: str,
    agent_id: str,
    builds: tuple[str, ...],
    devices: tuple[str, ...],
    slots: int,
    work_dir: Path | None,
    sandbox: str,
    canary_every_s: float | None,
    output: Output,
) -> None:
    """Run one agent: it owns devices, builds, and dials the tracker.

    This process becomes the agent, as `python -m farm_agents` would; its log goes to standard error until SIGTERM or
    Ctrl-C ends it. It prints no result, so -o json changes only how a wrong option is told.

    \b
    Example, on a host with a board's tools:
      farm agent --tracker 10.0.0.1:7460 --agent-id shelf-1 --builds llvm/aarch64 --device qemu:aarch64

    \b
    Devices and what they need on this host:
      cpu                nothing
      qemu:ARCH[/CPU]    Debian's qemu-user, kernel-farm[cross]; ARCH is aarch64, armv7 or riscv64
      wasm               kernel-farm[wasm]
      opencl[:P.D]       kernel-farm[opencl] or a driver; device D of platform P
      ea:CONFIG          nothing; CONFIG is ea8, ea16 or ea32
    """  # noqa: D301 - click's mark
    if importlib.util.find_spec(MODULE) is None:
        raise InvalidInput(f"agent: {MODULE} is not installed; install kernel-farm completely")
    if not NAME.fullmatch(agent_id):  # checked here, since it names a folder
        raise InvalidInput(
            f"agent id: malformed ({agent_id[:80]!r}); use lower-case letters, digits, dots, dashes and underscores"
        )
    if not builds and not devices:
        raise InvalidInput(
            "agent: neither --builds nor --device; name families that it builds (such as llvm/aarch64) or "
            "devices that it owns (such as cpu), or both"
        )
    for family in ",".join(builds).split(",") if builds else ():
        Target.of_family(family)
    from farm.cli.up import default_data_dir

    folder = writable_folder(work_dir or default_data_dir() / "agents" / agent_id)
    arguments = ["--tracker", tracker, "--agent-id", agent_id, "--slots", str(slots)]
    arguments += ["--work-dir", str(folder), "--sandbox", sandbox]
    if canary_every_s is not None:
        arguments += ["--canary-every-s", f"{canary_every_s:g}"]
    if builds:
        arguments += ["--builds", ",".join(builds)]
    for device in devices:
        arguments += ["--device", device]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", MODULE, *arguments])  # signals reach the agent
