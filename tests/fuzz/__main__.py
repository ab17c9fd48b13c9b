"""`python -m fuzz`: random functions, random schedules of them, and every way to run them here.

Owns: the command line and its processes. Does not own: functions, schedules or what is compared.

Invariant: the exit status is 0 only if every triple of function, schedule and target gave the interpreter's results.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from fuzz.batch import Found, run_batch

BATCH = 25
STORIES = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--triples", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--targets", default="interpreter,native")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    targets = tuple(options.targets.split(","))
    seeds = -(-options.triples // len(targets))
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
            for seed, story in found.wrong:
                total.wrong.append((seed, story))
                if len(total.wrong) <= STORIES:
                    print(f"seed {seed}\n{story}", flush=True)
    print("steps taken:")
    for name, count in total.taken.most_common():
        print(f"{count:8} {name}")
    print("steps refused:")
    for reason, count in total.refused.most_common():
        print(f"{count:8} {reason}")
    summary = {
        "triples": total.triples,
        "wrong": len(total.wrong),
        "steps_taken": total.taken.total(),
        "steps_refused": total.refused.total(),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(summary))
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
