"""`python -m simulation`: run many seeds, or tell the story of one.

Owns: the command line and its processes. Does not own: what a seed is.

Invariant: the exit status is 0 only if every invariant held in every seed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING

from simulation.story import run_batch, story_of

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH = 100
STORIES = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="tell the story of this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: its whole history")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        story = story_of(options.seed, whole=options.trace)
        print(story)
        return 0 if "every invariant held" in story.rsplit("\n", 1)[-1] else 1
    return _run_many(options.first, options.seeds, options.processes)


def _run_many(first: int, seeds: int, processes: int) -> int:
    started = time.monotonic()
    batches = [
        (start, min(BATCH, first + seeds - start)) for start in range(first, first + seeds, BATCH)
    ]
    events, cpu_s, done = 0, 0.0, 0
    failed: list[int] = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        for batch_events, batch_s, batch_failed in pool.imap_unordered(run_batch, batches):
            events += batch_events
            cpu_s += batch_s
            done += 1
            for seed in sorted(batch_failed):
                failed.append(seed)
                if len(failed) <= STORIES:
                    print(story_of(seed), flush=True)
            if sys.stderr.isatty():
                print(f"\r{done * BATCH} seeds", end="", file=sys.stderr, flush=True)
    elapsed_s = time.monotonic() - started
    print(
        f"{seeds} seeds, {len(failed)} violations, {events} events, {elapsed_s:.1f} s with "
        f"{processes} processes, {seeds / max(cpu_s, 1e-9):.0f} seeds per second of CPU time"
    )
    if failed:
        print("failing seeds:", *sorted(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
