"""Run all tests, a few pytests at the same time: most tests wait more than they compute.

The tests are cut into parts, each a pytest of its own with farms and checks for left-over processes of its own. Parts
that take long come first; when one ends, the next begins. Usage:
``python tests/parallel.py [ARGUMENTS OF PYTEST ..]``.
"""

from __future__ import annotations

import compileall
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SOURCES = ("farm", "tracker", "agents")
AT_ONCE = 4
PARTS = (
    ("integration/agents",),
    (
        "integration/client",
        "integration/cli",
        "integration/docs",
        "integration/graph",
        "integration/tune",
    ),
    ("unit/codegen", "unit/schedule", "unit/ops", "unit/te"),
    ("fault",),
    ("fault/hostile", "fault/test_agents_killed.py", "fault/test_tracker_killed.py"),
    ("unit/graph", "unit/port", "unit/porting", "unit/tracker"),
    (
        "integration/agents/test_fleet.py",
        "integration/demo",
        "integration/port",
        "integration/testing",
    ),
    ("integration/tracker",),
    ("integration/bench", "simulation"),
    ("integration",),
    ("",),
)
"""The beginnings of the names of each part's files; a file is in the part that says most of its name."""
COUNTED = re.compile(r"(\d+) (passed|failed|error|errors|skipped|xfailed|xpassed)\b")
NO_TESTS = 5


def parts() -> list[tuple[tuple[str, ...], list[str]]]:
    """Return each part's name and files; together they hold every test."""
    found: dict[tuple[str, ...], list[str]] = {part: [] for part in PARTS}
    beginnings = [(begin, part) for part in PARTS for begin in part]
    for path in sorted(TESTS.rglob("test_*.py")):
        name = path.relative_to(TESTS).as_posix()
        mine = [it for it in beginnings if f"{name}/".startswith(f"{it[0]}/" if it[0] else "")]
        found[max(mine, key=lambda it: len(it[0]))[1]].append(name)
    return [(part, files) for part, files in found.items() if files]


class Running:
    """One pytest under way."""

    def __init__(self, part: tuple[str, ...], files: list[str], log: Path) -> None:
        self.name = " ".join(part).strip() or "the rest"
        self.log, self.began = log, time.monotonic()
        paths = [str(TESTS / name) for name in files]
        command = [sys.executable, "-m", "pytest", "--durations=5", *sys.argv[1:], *paths]
        output: IO[bytes]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def tell(self, counts: Counter[str]) -> bool:
        """Print what it printed, now that it has ended, and count its tests; return whether all is well."""
        text = self.log.read_text(errors="replace")
        seconds = round(time.monotonic() - self.began)
        print(f"\n===== {self.name}: {seconds} s =====\n{text}", flush=True)
        summary = text.rstrip().rpartition("\n")[2]
        if not COUNTED.search(summary):
            print(f"this part ended with {self.process.returncode} and without a summary")
            counts["error"] += 1
        counts.update({kind.rstrip("s"): int(n) for n, kind in COUNTED.findall(summary)})
        return self.process.returncode in (0, NO_TESTS)


def run(folder: Path, counts: Counter[str]) -> bool:
    """Run every part; return whether all is well."""
    waiting, running, well = parts(), [], True
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(Running(*waiting.pop(0), folder / str(len(waiting))))
            for each in [it for it in running if it.process.poll() is not None]:
                running.remove(each)
                well &= each.tell(counts)
            time.sleep(0.2)
    except KeyboardInterrupt:
        for each in running:
            each.process.send_signal(signal.SIGINT)
        for each in running:
            each.process.wait()
        raise
    return well


def main() -> int:
    """Run the parts, print what each printed once it has ended, and then the sum."""
    began, counts = time.monotonic(), Counter[str]()
    for source in SOURCES:  # once, instead of in each of many processes that are started at once
        compileall.compile_dir(ROOT / source, quiet=2)
    with tempfile.TemporaryDirectory() as folder:
        try:
            well = run(Path(folder), counts)
        except KeyboardInterrupt:
            return 130
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"\nall parts: {minutes} min {seconds} s")
    sums = [f"{counts['passed']} passed", f"{counts['failed'] + counts['error']} failed"]
    print(", ".join([*sums, f"{counts['skipped']} skipped"]), flush=True)
    return 0 if well and counts["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
