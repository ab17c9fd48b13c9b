"""Run all tests, in a few groups at the same time: most of them wait more than they compute.

Each group is a pytest of its own, with farms and checks for left-over processes of its own. What is in no group is in
the last. Usage: ``python tests/parallel.py [ARGUMENTS OF PYTEST ..]``.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent
FIRST_GROUPS = (
    ("unit",),
    ("fault", "simulation"),
    ("integration/agents", "integration/cli", "integration/bench"),
)
PACKAGES = ("unit", "fault", "simulation", "golden")
COUNTED = re.compile(r"(\d+) (passed|failed|error|errors|skipped|xfailed|xpassed)\b")
NO_TESTS = 5


def groups() -> list[tuple[str, ...]]:
    """Return the folders of each group; together they hold every test."""
    integration = {
        f"integration/{each.name}" for each in (TESTS / "integration").iterdir() if each.is_dir()
    }
    every = {*PACKAGES, *integration}
    named = {name for group in FIRST_GROUPS for name in group}
    others = sorted(name for name in every - named if any((TESTS / name).rglob("test_*.py")))
    return [*FIRST_GROUPS, tuple(others)]


def main() -> int:
    """Run the groups, print what each printed once it has ended, and then the sum."""
    began, counts, failed = time.monotonic(), Counter[str](), False
    with tempfile.TemporaryDirectory() as folder:
        running = {}
        for number, group in enumerate(groups()):
            log = Path(folder) / str(number)
            paths = [str(TESTS / name) for name in group]
            command = [sys.executable, "-m", "pytest", "--durations=5", *sys.argv[1:], *paths]
            with log.open("wb") as output:
                started = subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
                )
            running[started] = (group, log)
        try:
            while running:
                for process in [each for each in running if each.poll() is not None]:
                    group, log = running.pop(process)
                    text = log.read_text(errors="replace")
                    print(f"\n===== {' '.join(group)} =====\n{text}", flush=True)
                    failed |= process.returncode not in (0, NO_TESTS)
                    summary = text.rstrip().rpartition("\n")[2]
                    if not COUNTED.search(summary):
                        print(f"this group ended with {process.returncode} and without a summary")
                        counts["error"] += 1
                    counts.update(
                        {kind.rstrip("s"): int(n) for n, kind in COUNTED.findall(summary)}
                    )
                time.sleep(0.2)
        except KeyboardInterrupt:
            for process in running:
                process.send_signal(signal.SIGINT)
            for process in running:
                process.wait()
            return 130
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"\nall groups: {minutes} min {seconds} s")
    parts = [f"{counts['passed']} passed", f"{counts['failed'] + counts['error']} failed"]
    print(", ".join([*parts, f"{counts['skipped']} skipped"]), flush=True)
    return 1 if failed or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
