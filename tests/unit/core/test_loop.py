"""The event loop of a service: uvloop where it is installed, else asyncio's, with the same results."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from farm.core.loop import run_service

HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None


@pytest.mark.parametrize("there", [True, False], ids=["uvloop", "asyncio"])
def test_service_runs_on_the_fastest_loop_and_its_result_or_error_comes_out(monkeypatch, there):
    if there and not HAS_UVLOOP:
        pytest.skip("uvloop is not installed")
    if not there:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    async def main():
        return type(asyncio.get_running_loop()).__module__

    assert run_service(main()).split(".")[0] == ("uvloop" if there else "asyncio")

    async def failing():
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        run_service(failing())
