"""Everything that a tuning needs is killed while it runs: its agent, which builds and measures, and its tracker.

Promised: the tuning goes on by itself when they are back; what was measured stays and is measured no more; no candidate
is blamed for what was killed under it.
Seen here: what the tuner recorded, and what it counted.
"""

from __future__ import annotations

import pytest

from farm import ops, te
from farm.tune import Records
from farm.tune.records import Outcome
from farm.tune.tuning import tune

TRIALS = 9
KILLS = {3: "agent", 6: "tracker"}
"""After how many trials what is killed."""


@pytest.fixture
def farm(make_farm):
    made = make_farm()
    made.start_tracker()
    made.start_agent("a1", "cpu", builds=("llvm/x86_64",))
    return made


def test_tuning_goes_on_over_dead_agents_and_trackers_and_measures_nothing_twice(farm, tmp_path):
    a, b = te.placeholder((24, 32), name="a"), te.placeholder((32, 32), name="b")
    product = te.function("product", [a, b, ops.matmul(a, b)])
    left = dict(KILLS)

    def kill(progress):
        match left.pop(progress.measured, ""):
            case "agent":
                farm.agents["a1"].kill()
                farm.start_agent("a1", "cpu", builds=("llvm/x86_64",))
            case "tracker":
                farm.tracker.kill()
                farm.start_tracker()

    client = farm.client()
    farm.until_good(client, "a1-cpu")
    with Records(tmp_path / "tune.db") as records:
        found = tune(
            product,
            client,
            selector="kind=cpu",
            trials=TRIALS,
            records=records,
            decide_s=0.2,
            ceilings=False,
            observer=kill,
        )
        kept = list(records.find())
    assert not left, farm.story()
    assert found.measured == found.trials == TRIALS
    assert len(kept) == len({it.configuration_text for it in kept}) == TRIALS
    assert not [it for it in kept if it.outcome is Outcome.QUARANTINED], farm.story()
    (decision,) = found.decisions
    assert decision.winner is not None, decision
