"""Entry of ``python -m farm_agents.fleet --tracker HOST:PORT [--file FLEET.toml] --work-dir DIR``.

Owns: arguments, signals, and one JSON line on standard output for each thing that happens.
Does not own: the cluster (`farm_agents.fleet.cluster`).

Invariant: SIGTERM, SIGINT and the end of a piped standard input end it with no process left behind, also while Ray
starts, which nothing can interrupt: then all of it is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from farm.errors import FarmError
from farm_agents.fleet.fleet import Fleet, default_fleet

TEND_S = 0.1
WATCH_S = 0.1
ENDINGS = (signal.SIGTERM, signal.SIGINT)
Mask = set[signal.Signals | int]
TEND_WHEN_READY_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a fleet until a signal ends it; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m farm_agents.fleet",
        description="Run the agents of a fleet file as actors of a Ray of their own on this host.",
        epilog="Example: python -m farm_agents.fleet --tracker 127.0.0.1:7460 --file fleet.toml "
        "--work-dir /var/tmp/fleet",
    )
    parser.add_argument("--tracker", required=True, help="HOST:PORT of the tracker")
    parser.add_argument("--file", type=Path, help="fleet file (default: one agent of each kind)")
    parser.add_argument("--work-dir", type=Path, required=True, help="folder for caches and logs")
    args = parser.parse_args(arguments)
    events = _take_output()
    endings: list[str] = []
    for number in ENDINGS:
        signal.signal(number, lambda got, frame: endings.append(signal.Signals(got).name))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)  # until Ray runs: see `_abandoned`
    _watch_input(endings)
    try:
        fleet = Fleet.load(args.file) if args.file else default_fleet(platform.machine())
        _run(fleet, args.tracker, args.work_dir.absolute(), endings, events, mask)
    except FarmError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    return 0


def _run(
    fleet: Fleet, tracker: str, work_dir: Path, endings: list[str], events: TextIO, mask: Mask
) -> None:
    from farm_agents.fleet.cluster import Cluster, make_folder

    start = time.monotonic()
    folder = make_folder()
    with _abandoned(endings, lambda: Cluster.abandon(folder), events, mask):
        cluster = Cluster.start(fleet, tracker, work_dir, folder)
    try:
        ready = False
        while not endings:
            for event in cluster.tend():
                _tell(events, event)
            if not ready and cluster.all_connected:
                ready = True
                seconds = round(time.monotonic() - start, 3)
                _tell(events, {"event": "ready", "agents": cluster.agents, "seconds": seconds})
            time.sleep(TEND_WHEN_READY_S if ready else TEND_S)
        _tell(events, {"event": "stopping", "cause": endings[0]})
    finally:
        cluster.stop()


@contextlib.contextmanager
def _abandoned(
    endings: list[str], abandon: Callable[[], None], events: TextIO, mask: Mask
) -> Iterator[None]:
    """Give what is done inside up, and end this process, as soon as it is to end.

    Ray waits inside of C++ for seconds, and puts handlers of its own in the place of ours. So signals are blocked in
    all threads but one that takes them; what Ray starts gets the mask `mask`, as does this thread afterwards.
    """
    handlers = {number: signal.getsignal(number) for number in ENDINGS}
    is_over = threading.Event()

    def watch() -> None:
        while not endings and not is_over.is_set():
            got = signal.sigtimedwait(ENDINGS, WATCH_S)
            if got is not None:
                endings.append(signal.Signals(got.si_signo).name)
        if endings:
            _tell(events, {"event": "stopping", "cause": endings[0]})
            abandon()
            os._exit(0)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with _children_get(mask):
            yield
    finally:
        is_over.set()
        watching.join()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _children_get(mask: Mask) -> Iterator[None]:
    """Let processes that are started inside have this mask of signals instead of that of their thread."""
    init = subprocess.Popen.__init__

    def start(*args: Any, **options: Any) -> None:
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            init(*args, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    subprocess.Popen.__init__ = start  # type: ignore[method-assign]
    try:
        yield
    finally:
        if subprocess.Popen.__init__ is start:
            subprocess.Popen.__init__ = init  # type: ignore[method-assign]


def _watch_input(endings: list[str]) -> None:
    """End when a piped standard input ends, so that a fleet never outlives who started it."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        threading.Thread(target=_read_input, args=(endings,), daemon=True).start()


def _read_input(endings: list[str]) -> None:
    while os.read(0, 4096):
        pass
    endings.append("end of input")


def _take_output() -> TextIO:
    """Return standard output for events alone; what Ray prints goes to standard error."""
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return events


def _tell(events: TextIO, event: Mapping[str, object]) -> None:
    events.write(json.dumps(event) + "\n")
    events.flush()


if __name__ == "__main__":
    raise SystemExit(main())
