"""Entry of a zygote: ``python -m farm_agents.worker --role session|build|probe --control-fd N --parent-pid P``.

Owns: choosing the role, warming it up, and checking that no thread runs.
Does not own: the loop (`farm_agents.worker.zygote`).

Invariant: the zygote forks only if it is single-threaded.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import signal
import socket
import sys

from farm_agents.worker import processes
from farm_agents.worker.pages import join_pages
from farm_agents.worker.zygote import Zygote

ROLES = {
    "session": "farm_agents.worker.session",
    "build": "farm_agents.worker.build",
    "probe": "farm_agents.worker.probe",
}


def main() -> int:
    """Run one zygote until its agent ends it."""
    parser = argparse.ArgumentParser(prog="farm_agents.worker", description=__doc__)
    parser.add_argument("--role", choices=sorted(ROLES), required=True)
    parser.add_argument("--warm", default="", help="kind of loader, or families to build")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    args = parser.parse_args()
    processes.die_with_parent(args.parent_pid, signal.SIGTERM)
    role = importlib.import_module(ROLES[args.role])
    role.warm_up(args.warm)
    threads = processes.thread_count()
    if threads != 1:
        print(
            f"zygote {args.role}: {threads} threads after warming up; one allowed", file=sys.stderr
        )
        return 1
    # What is loaded stays: a child that looked through it for garbage would copy every page that it shares with this.
    gc.collect()
    gc.freeze()
    join_pages()
    control = socket.socket(fileno=args.control_fd)
    Zygote(control, role.serve, args.role).serve()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
