"""Spare children: whatever one failed of, the next is tried."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from farm_agents.zygotes import Zygote

from farm.errors import InfrastructureError


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), InfrastructureError("no room; try again")]
)
def test_spare_that_could_not_be_made_does_not_stand_before_the_next(monkeypatch, error):
    good = SimpleNamespace(usable=True)
    answers = [error, good]

    async def make(zygote):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Zygote, "_make_confined", make)

    async def main():
        ready = asyncio.get_running_loop().create_future()
        zygote = Zygote(None, None, "mark", ready, rooms=SimpleNamespace())
        with pytest.raises(type(error)):
            await zygote.wait_for_spare()
        await zygote.wait_for_spare()
        assert await zygote._usable_spare() is good

    asyncio.run(main())


def test_zygote_without_a_sandbox_goes_on_only_as_long_as_a_child_of_it_works():
    async def main():
        loop = asyncio.get_running_loop()
        zygote = Zygote(None, None, "mark", loop.create_future(), rooms=None)
        rooms = SimpleNamespace()
        assert zygote.serves(None)
        assert not zygote.serves(rooms)
        child = SimpleNamespace(given=True, exited=loop.create_future())
        zygote._children[1] = child
        assert zygote.serves(rooms)
        child.exited.set_result(0)
        assert not zygote.serves(rooms)
        zygote._children[1] = SimpleNamespace(given=False, exited=loop.create_future())
        assert not zygote.serves(rooms)

    asyncio.run(main())
