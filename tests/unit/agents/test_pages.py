"""Large pages of a zygote."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

PROGRAM = """
import mmap, os
from pathlib import Path
from farm_agents.worker.pages import HUGE_BYTES, join_pages

memory = mmap.mmap(-1, 4 * HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
content = os.urandom(len(memory))
memory[:] = content
joined = join_pages()
same = memory[:] == content
child = os.fork()
if child == 0:
    memory[5] ^= 1
    os._exit(0)
os.waitpid(child, 0)
print(joined, same and memory[:] == content)
print(Path("/proc/self/smaps_rollup").read_text())
"""


def test_pages_are_joined_and_hold_what_they_held():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    joined, same = run.stdout.split()[:2]
    assert same == "True"
    if joined == "0":
        pytest.skip("this kernel joins no pages on demand (Linux 6.1)")
    (huge_kib,) = map(int, re.findall(r"^AnonHugePages: *(\d+) kB$", run.stdout, re.MULTILINE))
    assert huge_kib >= 3 * 2048  # all of what was mapped, its ends aside
