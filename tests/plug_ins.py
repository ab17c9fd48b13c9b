"""Packages with accelerators for tests: good ones are installed with pip, bad ones are written as pip would.

Owns: making them, and letting this process and its children find them. Does not own: what they do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples" / "port"

GOOD = """
from farm.accel import Accelerator
from farm.errors import UnsupportedFunction


def compile(function, config, knobs):
    if function.name.startswith("no_"):
        raise UnsupportedFunction(f"function {function.name} on NAME: its name starts with no_; place it on the CPU")
    return b"double"


def launch(program, config, unit):
    def run(arrays):
        arrays[-1][...] = arrays[0] * 2
    return run


ACCELERATOR = Accelerator(name="NAME", compile=compile, launch=launch)
"""
"""Doubles its first argument, whatever the function says. Variants of it go wrong in one place."""


def write_plug_in(
    folder: Path,
    name: str,
    code: str = GOOD,
    *,
    entry: str = "",
    package: str = "",
    version: str = "1.0",
) -> None:
    """Write a package that brings an accelerator, in the form in which pip leaves it."""
    module = f"plug_in_{name.replace('-', '_')}"
    package = package or f"farm-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(code.replace("NAME", name))
    about = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    points = f"[kernel_farm.accelerators]\n{name} = {entry or f'{module}:ACCELERATOR'}\n"
    (about / "entry_points.txt").write_text(points)


def install(folder: Path, *projects: Path) -> None:
    """Install projects with pip into a folder, without any network."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder)]
    subprocess.run([*command, *map(str, projects)], check=True, capture_output=True, timeout=240)


def find_from(monkeypatch, folder: Path) -> None:
    """Let this process and those that it starts find the packages of a folder."""
    from farm.accel.discovery import load

    monkeypatch.syspath_prepend(str(folder))
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{before}" if before else str(folder))
    load.cache_clear()
