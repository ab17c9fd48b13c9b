"""Farms that tests of this folder share, each for one file: later tests count processes."""

from __future__ import annotations

import platform

import pytest

from fault.farms import Farm


@pytest.fixture(scope="session")
def intel():
    """Skip where the witness, which makes system calls of x86-64 Linux, cannot run."""
    if platform.machine() != "x86_64":
        pytest.skip("needs an x86-64 host: the kernels make its system calls")


@pytest.fixture
def make_farm(intel, tmp_path):
    """Make farms in folders of their own; all of them end with the test."""
    made = []

    def make(name="farm", **options):
        root = tmp_path / name
        root.mkdir()
        made.append(Farm(root, **options))
        return made[-1]

    yield make
    for it in reversed(made):
        it.close()


@pytest.fixture(scope="module")
def shared_farm(intel, tmp_path_factory):
    """A farm for the tests of one file; nothing of it is started."""
    with Farm(tmp_path_factory.mktemp("fault")) as made:
        yield made
