"""The pages of the examples say what is so: commands that exist, files that are there, lines, and cycles."""

from __future__ import annotations

import re
import shlex
import sys

import click
import pytest
from plug_ins import EXAMPLES

from farm import ops, te
from farm.accel import Loaded
from farm.cli.main import group
from farm.codegen.accelerator import with_knobs
from farm.codegen.accelerator.asking import knobs_on
from farm.codegen.accelerator.compile import compile_loaded
from farm.runtime.plugin import open_program

ROOT = EXAMPLES.parents[2]
PAGES = sorted(EXAMPLES.rglob("README.md"))
COMMANDS = sorted(
    {
        line
        for page in PAGES
        for line in re.findall(r"^    (farm [^\n]+)$", page.read_text(), re.MULTILINE)
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_a_page_has_the_options_that_it_shows(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("kernels.py", "kernels.farm", "network.py"):
        (tmp_path / name).touch()
    words = shlex.split(command)[1:]
    context, found = click.Context(group), group
    while isinstance(found, click.Group):
        chosen = found.get_command(context, words[0])
        assert chosen is not None, words
        found, words = chosen, words[1:]
    found.make_context("farm", list(words), parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_page_links_to_files_that_are_there_and_installs_what_there_is(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for project in re.findall(r"^    pip install (\S+)$", text, re.MULTILINE):
        assert (ROOT / project / "pyproject.toml").exists(), project


def test_lines_of_each_example_are_those_that_the_page_says():
    text = (EXAMPLES / "README.md").read_text()
    rows = dict(re.findall(r"\| \[(\w+)\]\(\w+\) \| (\d+) \|", text))
    assert set(rows) == {"target", "tensorize", "library", "byoc"}
    for name, lines in rows.items():
        (file,) = (EXAMPLES / name).glob("*.py")
        assert len(file.read_text().splitlines()) == int(lines) <= 160, file


@pytest.fixture
def imported(monkeypatch):
    def get(folder, module, attribute):
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))
        found = getattr(__import__(module), attribute)
        monkeypatch.delitem(sys.modules, module)
        return found

    return get


def cycles(accelerator, m, n, k):
    """Return the cycles of a product by every value of the last knob."""
    import numpy as np

    x, w = te.placeholder((m, k), "int8", name="x"), te.placeholder((k, n), "int8", name="w")
    function = te.function("layer", [x, w, ops.matmul(x, w)])
    loaded = Loaded(accelerator, accelerator.name)
    *_, (name, values) = knobs_on(loaded, function, accelerator.name).items()
    found = []
    for value in values:
        config = loaded.config(accelerator.name)
        form, program = compile_loaded(loaded, with_knobs(function, {name: value}), config)
        arrays = [np.zeros(p.buffer.shape, p.buffer.dtype.numpy) for p in function.params]
        found.append(open_program(loaded, form, program, config, "")(arrays))
    return found


def test_cycles_are_those_that_the_pages_say(imported):
    tile8 = cycles(imported("target", "tile8", "TILE8"), 64, 64, 64)
    assert (tile8[0], tile8[-1]) == (9282, 5698)
    assert "5,698\n  cycles, one takes 9,282" in (EXAMPLES / "target" / "README.md").read_text()
    dotcore = cycles(imported("tensorize", "dotcore", "DOTCORE"), 64, 16, 16)
    assert (dotcore[0], min(dotcore)) == (512, 288)
    assert "288\ncycles and the first 512" in (EXAMPLES / "tensorize" / "README.md").read_text()
