"""Graphs that several tests use."""

from __future__ import annotations

import pytest
from graph_examples import quantised_pair

from farm.graph import Graph


@pytest.fixture(scope="session")
def pair() -> Graph:
    return quantised_pair()
