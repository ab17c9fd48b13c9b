"""Every strategy keeps the promises of a search, and finds what random search does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.tune import STRATEGIES, Search, Space
from farm.tune import space as space_module

VALUES = {"x": range(12), "y": range(12), "mode": ["a", "b"], "k": [1, 2, 4, 8]}
LARGE = {f"p{i}": range(1, 17) for i in range(12)}


def cost(configuration):
    """Return a cost with one valley, and failures in a corner."""
    x, y = configuration["x"], configuration["y"]
    if x > 9 and y > 9:
        return None
    rough = 1 + (x - 3) ** 2 + (y - 8) ** 2 + 5 * (configuration["mode"] == "b")
    return rough * (1 + abs(math.log2(configuration["k"]) - 1))


def search_to(search, evaluations, at_once=1):
    """Run a search; return costs in order."""
    costs = []
    while len(costs) < evaluations and not search.exhausted:
        for number in search.ask(min(at_once, evaluations - len(costs))):
            value = cost(search.space.configuration(number))
            search.tell(number, value)
            costs.append(value)
    return costs


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("at_once", [1, 7])
def test_no_configuration_is_asked_for_twice_to_the_end_of_the_space(strategy, at_once):
    space = Space({"x": range(5), "y": range(5), "mode": ["a", "b"], "k": [1, 2]}, ["x + y < 7"])
    search = Search(space, seed=2, strategy=strategy)
    costs = search_to(search, 10_000, at_once)
    assert len(costs) == space.size == len(search.history.costs)
    assert search.ask(3) == []
    assert search.best == ({"x": 2, "y": 4, "mode": "a", "k": 2}, 18.0) or search.best[1] == min(
        each for each in costs if each is not None
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_seed_repeats_a_search_and_another_does_not(strategy):
    space = Space(VALUES)

    def asked(seed):
        search = Search(space, seed=seed, strategy=strategy)
        search_to(search, 40, 4)
        return list(search.history.costs)

    assert asked(1) == asked(1)
    assert asked(1) != asked(2)


@pytest.mark.parametrize("strategy", [each for each in STRATEGIES if each != "random"])
def test_a_strategy_finds_better_than_random_search(strategy):
    space = Space(VALUES)

    def found(name):
        results = []
        for seed in range(8):
            search = Search(space, seed=seed, strategy=name)
            search_to(search, 80)
            results.append(search.best[1])
        return np.mean(results)

    assert found(strategy) < found("random")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_results_may_come_late_in_any_order_or_never(strategy):
    space, rng = Space(VALUES), np.random.default_rng(0)
    search = Search(space, seed=1, strategy=strategy)
    open_asks = []
    for _ in range(12):
        open_asks += search.ask(5)
        assert len(set(open_asks) | set(search.history.costs)) == len(open_asks) + len(
            search.history.costs
        )
        rng.shuffle(open_asks)
        for number in open_asks[:4]:
            search.tell(number, cost(space.configuration(number)))
        search.forget(open_asks[4])
        open_asks = open_asks[5:]
    assert set(search.history.pending) == set(open_asks)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_space_where_all_fails_is_searched_all_the_same(strategy):
    search = Search(Space(VALUES), strategy=strategy)
    for _ in range(30):
        for number in search.ask():
            search.tell(number, None)
    assert search.best is None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_costs_of_any_size_do_no_harm(strategy):
    search = Search(Space(VALUES), strategy=strategy)
    for count in range(30):
        for number in search.ask():
            search.tell(number, (0.0, 1e-300, 1e300, 5.0, 5.0)[count % 5])
    assert search.best[1] == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_space_too_large_to_list_is_searched(strategy, monkeypatch):
    monkeypatch.setattr(space_module, "MAX_TABLE", 100)
    space = Space(LARGE, ["p0 <= p1", "p2 % p3 == 0"])
    search = Search(space, strategy=strategy)
    for _ in range(10):
        for number in search.ask(2):
            search.tell(number, float(sum(space.configuration(number).values())))
    assert len(search.history.costs) == 20


def test_a_search_resumes_where_records_left_off():
    space = Space(VALUES)
    first = Search(space, seed=1)
    search_to(first, 30)
    records = [
        (space.configuration(number), value) for number, value in first.history.costs.items()
    ]
    records = [(each, None if math.isinf(value) else value) for each, value in records]
    foreign = ({"x": 99, "y": 0, "mode": "a", "k": 1}, 1.0)
    second = Search(space, seed=1)
    assert second.resume([*records, foreign, records[0]]) == 30
    assert second.best == first.best
    assert not set(second.ask(20)) & set(first.history.costs)


@pytest.mark.parametrize(("number", "value"), [(-1, 1.0), (10**6, 1.0), (0, -1.0), (0, math.nan)])
def test_a_result_that_makes_no_sense_is_refused(number, value):
    search = Search(Space(VALUES))
    with pytest.raises(InvalidInput):
        search.tell(number, value)
    assert search.history.costs == {}


def test_a_second_result_is_refused_and_an_unknown_strategy_named():
    search = Search(Space(VALUES))
    search.tell(3, 1.0)
    with pytest.raises(InvalidInput, match="has one already"):
        search.tell(3, 1.0)
    with pytest.raises(InvalidInput, match="use one of portfolio, surrogate"):
        Search(Space(VALUES), strategy="best")
