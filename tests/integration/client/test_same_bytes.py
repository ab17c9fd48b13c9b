"""The same request on farms of different sizes."""

from __future__ import annotations

import farm
from farm import te
from farm.target.host import host_triple
from farm.testing import EmbeddedFarm
from farm.testing.agents import AgentPlan

HOST = f"llvm/{host_triple().partition('-')[0]}"
EVERYTHING = ("ea", "llvm/aarch64", HOST)


def functions():
    made = []
    for factor in range(2, 6):
        x = te.placeholder((16,), "int32", name="x")
        y = te.compute((16,), lambda i, x=x, factor=factor: x[i] * factor, name="y")
        made.append(te.function(f"times{factor}", [x, y]))
    return made


def test_same_request_on_one_and_on_three_agents_gives_the_same_digest(embedded_farm):
    made = functions()
    request = {"ea": made[:2], "llvm": made, "llvm -mtriple=aarch64-linux-gnu": made}
    agents = [set(), set()]
    with farm.connect(embedded_farm.address) as client:
        three = client.build(request, variants=True, progress=lambda it: agents[0].add(it.agent_id))
    alone = AgentPlan(agent_id="alone", builds=tuple(dict.fromkeys(EVERYTHING)), slots=2)
    with EmbeddedFarm("processes", plans=(alone,)) as small, farm.connect(small.address) as client:
        one = client.build(request, variants=True, progress=lambda it: agents[1].add(it.agent_id))
    assert one.digest == three.digest == farm.build(request, variants=True).digest
    assert (len(agents[0] - {""}), agents[1] - {""}) == (3, {"alone"})
