"""One farm of plain processes for all integration tests of this session that ask for it."""

from __future__ import annotations

import pytest

from farm.testing import EmbeddedFarm


@pytest.fixture(scope="session")
def embedded_farm():
    """A farm with the default agents, without Ray; tests share it and must leave it as it was."""
    with EmbeddedFarm("processes") as embedded:
        yield embedded
