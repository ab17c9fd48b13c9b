"""Packages that bring accelerators, written into a folder that this process and its children look into."""

from __future__ import annotations

import sys

import pytest
from plug_ins import find_from, write_plug_in

from farm.accel.discovery import load


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Return a function that writes one; modules of the folder are forgotten at the end."""
    before = set(sys.modules)
    find_from(monkeypatch, tmp_path)
    yield lambda *arguments, **options: write_plug_in(tmp_path, *arguments, **options)
    load.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("plug_in_"):
            del sys.modules[name]
