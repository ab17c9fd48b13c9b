"""Memory of a zygote that is made ready for its children: code in huge pages, a heap without holes."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from farm_agents.worker import layout

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_huge_pages = pytest.mark.skipif(
    platform.machine() != "x86_64" or not HUGE.exists() or "[never]" in HUGE.read_text(),
    reason="code is moved on x86-64 alone, where the kernel gives huge pages",
)
# In a process of its own, since it changes that process for good.
COMPILES = """
import os, re
from farm.codegen import compile_function
from farm.target import Target
from farm_agents.worker import layout
from farm_agents.worker.small import small_function

def compiled():
    return compile_function(small_function(), "device", Target.parse("llvm")).data

def faults():
    compiled()
    return int(open("/proc/self/stat").read().rpartition(")")[2].split()[7])

def in_a_child(work):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, repr(work()).encode())
        os._exit(0)
    os.wait()
    return eval(os.read(read, 1 << 16))

before, many = compiled(), in_a_child(faults)
code = list(layout._code_of("libllvmlite"))
print(layout.move_code("libllvmlite"), layout.clear_heap())
print(compiled() == before == in_a_child(compiled))
moved = sum(b - a for a, b in code) - sum(b - a for a, b in layout._code_of("libllvmlite"))
print(moved > 0.9 * sum(b - a for a, b in code), in_a_child(faults) < 0.9 * many)
spans = re.findall(r"(\\S+)-(\\S+) rwx", open("/proc/self/maps").read())
print(max((int(b, 16) - int(a, 16) for a, b in spans), default=0) < layout.HUGE_BYTES)
"""


@needs_huge_pages
def test_children_of_a_process_with_its_code_moved_compile_the_same_with_fewer_faults():
    done = subprocess.run([sys.executable, "-c", COMPILES], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["True True", "True", "True True", "True"], done.stderr


def test_library_that_is_not_loaded_or_on_another_machine_stays(monkeypatch):
    assert not layout.move_code("no such library")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert not layout.move_code("libllvmlite")


def test_code_stays_where_the_kernel_gives_no_huge_pages(monkeypatch):
    monkeypatch.setattr(layout, "_huge_bytes", lambda address: 0)
    maps = layout._MAPS.read_text()
    loaded = next(it for it in maps.splitlines() if " r-xp " in it and "libc.so" in it)
    (span,) = layout._code_of("libc.so")
    monkeypatch.setattr(layout, "HUGE_BYTES", 4096)  # the C library's code is small
    assert not layout.move_code("libc.so")
    assert loaded in layout._MAPS.read_text()
    assert span in list(layout._code_of("libc.so"))
