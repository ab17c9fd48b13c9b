"""The agent's shell by itself: what it answers to its core."""

from __future__ import annotations

import asyncio

from farm_agents.agent import Agent
from farm_agents.spec import AgentSpec
from farm_agents.state.messages import Desired
from farm_agents.state.model import BuildOrder

from farm.core.clock import SystemClock
from farm.core.digest import digest_of
from farm.core.ids import random_id


def test_agent_build_that_is_unwanted_before_its_first_step_gives_its_slot_back(tmp_path):
    async def body():
        spec = AgentSpec("127.0.0.1:1", "a", ("ea",), 1, (), tmp_path)
        agent = Agent(spec, SystemClock(), random_id, lambda: None)
        order = BuildOrder("u.1", "device", "ea", "f", digest_of(b""), 1.0)
        agent._apply(Desired((), (order,)))
        agent._apply(Desired((), ()))  # the task that builds has not run yet
        assert not agent.state.at_rest
        async with asyncio.timeout(60):
            while not agent.state.at_rest:
                await asyncio.sleep(0)
        assert agent.state.builds == {}
        await agent._channel.close()

    asyncio.run(body())
