"""The import contracts of pyproject.toml refuse what they must and allow what they should.

They run over a small tree of the same package names, so that the outcome does not depend on which
packages exist today.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINT = Path(sys.executable).with_name("lint-imports")

ALLOWED = (
    "farm.cli.a -> farm.testing.a",
    "farm.testing.a -> farm_tracker.a",
    "farm.testing.a -> farm_agents.a",
    "farm.tune.a -> farm.client.a",
    "farm.client.a -> grpc",
    "farm.building.a -> farm.codegen.a",
    "farm.codegen.a -> llvmlite",
    "farm.te.a -> farm.ir.a",
    "farm.runtime.a -> llvmlite",
    "farm.runtime.a -> farm.artifact.a",
    "farm.runtime.a -> farm.ea.a",
    "farm.artifact.a -> farm.api.a",
    "farm.rpc.a -> grpc",
    "farm.rpc.a -> farm.target.a",
    "farm.target.a -> farm.ea.a",
    "farm_tracker.a -> farm.artifact.a",
    "farm_tracker.a -> farm.rpc.a",
    "farm_tracker.a -> grpc",
    "farm_tracker.a -> sqlalchemy",
    "farm_agents.a -> farm.codegen.a",
    "farm_agents.a -> farm.runtime.a",
    "farm.runtime.a -> wasmtime",
    "farm.runtime.a -> pyopencl",
    "farm_agents.a -> grpc",
    "farm_agents.fleet.a -> ray",
)

REFUSED = (
    "farm.core.b -> farm.target.b",
    "farm.errors.b -> farm.api.b",
    "farm.artifact.b -> farm.rpc.b",
    "farm.ir.b -> farm.te.b",
    "farm.client.b -> farm.tune.b",
    "farm.ir.b -> farm.runtime.b",
    "farm.runtime.b -> farm.ir.c",
    "farm.runtime.b -> farm.rpc.b",
    "farm.runtime.c -> farm.api.b",
    "farm_tracker.b -> farm.ir.c",
    "farm.ea.b -> farm.target.c",
    "farm_tracker.b -> farm.client.c",
    "farm_tracker.b -> farm_agents.c",
    "farm_agents.b -> farm_tracker.c",
    "farm_agents.b -> farm.client.c",
    "farm.cli.b -> farm_tracker.c",
    "farm.client.b -> farm_agents.c",
    "farm.te.b -> grpc",
    "farm.codegen.b -> farm.rpc.b",
    "farm.te.c -> llvmlite",
    "farm.client.c -> llvmlite",
    "farm_agents.c -> llvmlite",
    "farm_agents.c -> wasmtime",
    "farm.client.c -> pyopencl",
    "farm_agents.c -> ray",
    "farm_tracker.c -> ray",
    "farm_agents.c -> sqlalchemy",
    "farm.client.c -> sqlalchemy",
)


def lint(folder: Path, edges: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Lay out a tree with these imports in `folder` and run the contracts over it."""
    for package in ("farm", "farm_tracker", "farm_agents"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    for importer, imported in (edge.split(" -> ") for edge in edges):
        for name in (importer, imported):
            path = folder / f"{name.replace('.', '/')}.py"
            if "." in name:
                path.parent.mkdir(parents=True, exist_ok=True)
                (path.parent / "__init__.py").touch()
                path.touch()
        with (folder / f"{importer.replace('.', '/')}.py").open("a") as source:
            source.write(f"import {imported}\n")
    shutil.copy(ROOT / "pyproject.toml", folder)
    return subprocess.run(
        [LINT, "--no-logo", "--no-cache"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def test_layers_with_allowed_imports_are_kept(tmp_path: Path) -> None:
    run = lint(tmp_path, ALLOWED)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"Contracts: \d+ kept, 0 broken", run.stdout)


def test_layers_with_only_empty_packages_are_kept(tmp_path: Path) -> None:
    run = lint(tmp_path, ())
    assert run.returncode == 0, run.stdout + run.stderr


def test_layers_with_refused_imports_name_each_one(tmp_path: Path) -> None:
    run = lint(tmp_path, REFUSED)
    assert run.returncode == 1, run.stdout + run.stderr
    assert [edge for edge in REFUSED if f"{edge} (l." not in run.stdout] == []


@pytest.mark.parametrize("package", ["newcomer", "tracker"])
def test_layers_with_a_package_that_has_no_layer_are_broken(tmp_path: Path, package: str) -> None:
    run = lint(tmp_path, (f"farm.{package}.a -> farm.core.a",))
    assert run.returncode == 1, run.stdout + run.stderr
    assert f"- farm.{package}\n" in run.stdout
