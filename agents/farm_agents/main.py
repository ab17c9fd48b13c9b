"""The command ``python -m farm_agents``: one agent as a plain process.

Owns: its arguments, signals and exit codes. Does not own: the agent (`farm_agents.agent`).

Invariant: SIGTERM and SIGINT end it with no process left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from farm.core.ids import AgentId
from farm.core.loop import run_service
from farm.errors import FarmError
from farm_agents.crash_points import POINTS
from farm_agents.sandbox.mode import Mode
from farm_agents.spec import CANARY_EVERY_S, AgentSpec, parse_devices


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one agent until a signal ends it; return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        spec = parse_arguments(arguments)
        POINTS.arm(os.environ)
        run_service(serve(spec))
    except FarmError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    return 0


def parse_arguments(arguments: Sequence[str] | None = None) -> AgentSpec:
    """Return the specification that the arguments stand for.

    Raises
    ------
    InvalidInput
        A value is malformed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m farm_agents",
        description="Run one agent: it owns devices, builds, and dials the tracker.",
        epilog="Example: python -m farm_agents --tracker 127.0.0.1:7460 --agent-id shelf-1 "
        "--builds llvm/x86_64,ea --device cpu --device ea:ea16 --work-dir /var/tmp/shelf-1",
    )
    parser.add_argument("--tracker", required=True, help="HOST:PORT of the tracker")
    parser.add_argument(
        "--agent-id", required=True, help="unique in the farm, kept across restarts"
    )
    parser.add_argument("--builds", default="", help="families of targets, such as llvm/aarch64,ea")
    parser.add_argument("--slots", type=int, default=1, help="items built at once (default: 1)")
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        help="DRIVER[:ARGUMENT][@ID]: cpu, qemu:aarch64, ea:ea16; may be repeated",
    )
    parser.add_argument("--work-dir", type=Path, required=True, help="folder for cache and logs")
    parser.add_argument(
        "--sandbox",
        choices=[mode.value for mode in Mode],
        default=Mode.AUTO.value,
        help="confine kernels and compilers: where it works, or no work without, or never (default: auto)",
    )
    parser.add_argument(
        "--canary-every-s",
        type=float,
        default=CANARY_EVERY_S,
        help="seconds between canary kernels on an idle device; 0: never (default: %(default)g)",
    )
    args = parser.parse_args(arguments)
    agent_id = AgentId(args.agent_id)
    return AgentSpec(
        tracker=args.tracker,
        agent_id=agent_id,
        builds=tuple(filter(None, args.builds.split(","))),
        slots=args.slots,
        devices=parse_devices(args.device, agent_id),
        work_dir=args.work_dir.absolute(),
        sandbox=Mode(args.sandbox),
        canary_every_s=args.canary_every_s,
    )


async def serve(spec: AgentSpec) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    from farm_agents.agent import run_agent

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run_agent(spec, stop)
