"""Every example and command in the documents runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from farm_agents.fleet.fleet import Fleet

from farm.cli.main import group

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/guide.md")
BLOCK = re.compile(r"^```(?P<kind>[a-z]*(?: farm)?)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:    )?(farm (?:up|agent)\b[^\n]*)$", re.MULTILINE)


def blocks(*kinds):
    """Return the fenced blocks of these kinds, each with an id that names its place."""
    found = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        for match in BLOCK.finditer(text):
            if match["kind"] in kinds:
                line = text.count("\n", 0, match.start()) + 1
                found.append(pytest.param(match["text"], id=f"{name}:{line}"))
    return found


@pytest.fixture
def folder(tmp_path):
    """Where examples run: they find docs/ there, and may leave files."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    return tmp_path


def run_python(code, folder, **environment):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("code", blocks("python"))
def test_document_example_without_a_farm_runs(code, folder):
    run_python(code, folder)


@pytest.mark.parametrize("code", blocks("python farm"))
def test_document_example_on_a_farm_runs(code, folder, embedded_farm):
    run_python(code, folder, FARM_TRACKER=embedded_farm.address)


@pytest.mark.parametrize("script", blocks("sh"))
def test_document_commands_on_a_farm_run(script, embedded_farm, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in script.splitlines():
        run = subprocess.run(
            shlex.split(command),
            cwd=folder,
            env={**os.environ, "FARM_TRACKER": embedded_farm.address, "PATH": path},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"


@pytest.mark.parametrize("text", blocks("c"))
def test_document_source_is_the_one_that_its_commands_build(text):
    assert text == (ROOT / "docs" / "examples" / "saxpy.c").read_text()


@pytest.mark.parametrize("text", blocks("toml"))
def test_document_fleet_file_is_accepted(text, tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    assert Fleet.load(path).members


@pytest.mark.parametrize(
    "command", sorted({c for name in DOCUMENTS for c in COMMAND.findall((ROOT / name).read_text())})
)
def test_document_service_command_has_the_options_it_shows(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.toml").write_text('[[agent]]\nname = "a"\ndevices = ["cpu"]\n')
    name, *arguments = shlex.split(command.partition(" shows ")[0])[1:]
    with click.Context(group) as parent:
        chosen = group.get_command(parent, name)
        assert chosen is not None
        chosen.make_context(name, [a for a in arguments if a != "--help"], parent)


def test_document_readme_example_prints_what_it_says(folder):
    text = next(param.values[0] for param in blocks("python") if param.id.startswith("README"))
    assert run_python(text, folder) == "ea -config=ea16\n[ 1  3  5  7  9 11 13 15]\n"


def test_documents_link_only_to_files_that_exist():
    for name in DOCUMENTS:
        prose = BLOCK.sub("", (ROOT / name).read_text())
        for target in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert ((ROOT / name).parent / target).exists(), f"{name}: {target}"
