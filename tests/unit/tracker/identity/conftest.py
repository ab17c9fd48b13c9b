"""Tokens on a clock that tests move."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from farm_tracker.identity.store import TokenStore
from farm_tracker.identity.tokens import Tokens

KEY = bytes(range(32))


@dataclass
class ManualClock:
    at: float = 1_000_000.0

    def now(self):
        return self.at

    def wall(self):
        return self.at


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def with_tokens(tmp_path, clock):
    """Run an async body with the tokens of one data folder; they are opened anew each time."""

    def run(body, key=KEY):
        async def opened():
            store = TokenStore(tmp_path / "identity.db")
            tokens = Tokens(store, key, clock)
            try:
                await body(tokens)
                await tokens.close()
            finally:
                store.close()

        asyncio.run(opened())

    return run
