"""`python -m fuzz`: random functions, random schedules of them, and every way to run them here.

Owns: the command line and its processes. Does not own: functions, schedules or what is compared.

Invariant: the exit status is 0 only if every triple of function, schedule and target gave the interpreter's results.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from farm.runtime.qemu import find_emulator
from fuzz.batch import Found, run_batch
from fuzz.compiled import EMULATED, WAYS

BATCH = 25
STORIES = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--triples", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--targets",
        type=_targets,
        default=",".join(["interpreter,native,wasm/2,opencl/20", *_emulated()]),
        help="names, NAME/N with every Nth seed only (default: %(default)s)",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after that")
    options = parser.parse_args(arguments)
    targets = options.targets
    seeds = math.ceil(options.triples / sum(1 / every for every in targets.values()))
    tasks = [
        (start, min(BATCH, options.first + seeds - start), targets)
        for start in range(options.first, options.first + seeds, BATCH)
    ]
    began, total = time.monotonic(), Found()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for found in pool.imap_unordered(run_batch, tasks):
            total.triples += found.triples
            total.refused += found.refused
            total.taken += found.taken
            total.unsupported += found.unsupported
            for seed, story in found.wrong:
                total.wrong.append((seed, story))
                if len(total.wrong) <= STORIES:
                    print(f"seed {seed}\n{story}", flush=True)
            if time.monotonic() - began > options.seconds:
                break
    print("steps taken:")
    for name, count in total.taken.most_common():
        print(f"{count:8} {name}")
    print("steps refused:")
    for reason, count in total.refused.most_common():
        print(f"{count:8} {reason}")
    print("functions that a target does not take:")
    for reason, count in total.unsupported.most_common():
        print(f"{count:8} {reason}")
    summary = {
        "triples": total.triples.total(),
        "by_target": dict(total.triples),
        "wrong": len(total.wrong),
        "steps_taken": total.taken.total(),
        "steps_refused": total.refused.total(),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(summary))
    return 1 if total.wrong else 0


def _emulated() -> list[str]:
    """Return the CPUs that qemu, as far as it is installed, can be here, each with every second seed."""
    return [
        f"{name}/2"
        for name, machine in EMULATED.items()
        if find_emulator(machine.partition("/")[0])
    ]


def _targets(text: str) -> dict[str, int]:
    found = {}
    for part in text.split(","):
        name, _, every = part.partition("/")
        if name not in ("interpreter", *WAYS):
            raise argparse.ArgumentTypeError(
                f"unknown {name!r}; use interpreter, {', '.join(WAYS)}"
            )
        found[name] = int(every or 1)
    return found


if __name__ == "__main__":
    sys.exit(main())
