"""Spaces against what a list of all combinations says."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import InvalidSpace
from farm.tune import space as space_module
from farm.tune.space import Space

CONSTRAINTS = (
    "a % b == 0",
    "a * b <= 24",
    "b < c or a == 1",
    "c != 3",
    "max(a, c) - min(a, c) < 5",
    "a + b + c + d <= 12",
    "d in (1, 2, 4)",
    "not (a == 2 and d == 4)",
)


@st.composite
def spaces(draw):
    parameters = {
        name: sorted(draw(st.sets(st.integers(1, 8), min_size=1, max_size=5))) for name in "abcd"
    }
    return parameters, draw(st.lists(st.sampled_from(CONSTRAINTS), max_size=4, unique=True))


def listed(parameters, constraints):
    """Return all valid configurations the slow way."""
    names = list(parameters)
    combinations = (
        dict(zip(names, row, strict=True)) for row in itertools.product(*parameters.values())
    )
    return [
        each for each in combinations if all(eval(text, {}, dict(each)) for text in constraints)
    ]


@pytest.fixture(params=["listed", "counted"])
def kind(request, monkeypatch):
    """Use the list of a small space, or what serves those that are too large for one."""
    if request.param == "counted":
        monkeypatch.setattr(space_module, "MAX_TABLE", 0)
    return request.param


@pytest.mark.usefixtures("kind")
@settings(max_examples=60)
@given(spaces(), st.randoms(use_true_random=False))
def test_a_space_holds_exactly_the_valid_combinations(made, rng):
    parameters, constraints = made
    expected = listed(parameters, constraints)
    if not expected:
        with pytest.raises(InvalidSpace, match="no configuration is valid"):
            Space(parameters, constraints)
        return
    space = Space(parameters, constraints)
    assert space.size == len(expected)
    seen = [space.configuration(number) for number in range(space.size)]
    assert sorted(map(str, seen)) == sorted(map(str, expected))
    assert [space.number(each) for each in seen] == list(range(space.size))
    number = rng.randrange(space.size)
    here = seen[number]
    near = [
        each
        for each, other in enumerate(seen)
        if sum(here[name] != other[name] for name in here) == 1
    ]
    assert space.neighbours(number) == near
    steps = space.neighbours(number, adjacent=True)
    for each in near:
        (name,) = (name for name in here if here[name] != seen[each][name])
        values = parameters[name]
        apart = abs(values.index(here[name]) - values.index(seen[each][name]))
        assert (each in steps) == (apart == 1)
    wanted = {name: rng.choice(values) for name, values in parameters.items()}
    nearest = seen[space.nearest(wanted, np.random.default_rng(0))]
    if wanted in seen:
        assert nearest == wanted


@pytest.mark.usefixtures("kind")
def test_draws_differ_and_reach_every_configuration():
    space = Space({"a": range(1, 9), "b": range(1, 9)}, ["a % b == 0"])
    rng = np.random.default_rng(3)
    counts = np.zeros(space.size)
    for _ in range(2000):
        drawn = space.draw(rng, 5)
        assert len(set(drawn)) == 5
        counts[drawn] += 1
    assert 0.8 < counts.min() / counts.mean() <= counts.max() / counts.mean() < 1.2
    assert sorted(space.draw(rng, 100)) == list(range(space.size))


def test_a_space_too_large_to_list_is_counted_and_numbered():
    values = range(1, 17)
    space = Space({f"p{i}": values for i in range(40)}, [f"p{i} <= p{i + 1}" for i in range(39)])
    assert space.size == math.comb(55, 15)  # ascending rows of 40 among 16 values, of 16**40
    rng = np.random.default_rng(0)
    for number in [0, space.size - 1, *space.draw(rng, 20)]:
        configuration = space.configuration(number)
        assert list(configuration.values()) == sorted(configuration.values())
        assert space.number(configuration) == number
        assert space.neighbours(number)


def test_an_unsatisfiable_space_is_an_error_that_names_the_constraint():
    values = list(range(1, 101))
    parameters = dict.fromkeys("abcdefgh", values)
    began = time.monotonic()
    with pytest.raises(
        InvalidSpace, match=r"without any one of these some would be: 'a > b', 'b > a'"
    ):
        Space(parameters, ["a > b", "b > a", "c < d", "e % f == 0"])
    assert (
        time.monotonic() - began < 100
    )  # a second on a machine of its own; years if each were tried


def test_a_space_too_entangled_to_count_is_refused():
    with pytest.raises(InvalidSpace, match="too entangled"):
        Space(
            {f"p{i}": range(1, 60) for i in range(8)},
            [" + ".join(f"p{i}*{i + 2}" for i in range(8)) + " == 7"],
        )


@pytest.mark.parametrize(
    ("parameters", "constraints", "words"),
    [
        ({}, [], "0 parameters"),
        ({"a": []}, [], "0 values"),
        ({"a": [1, 1]}, [], "stands twice"),
        ({"a b": [1]}, [], "no identifier"),
        ({"a": [1]}, ["b > 0"], "unknown parameters .b."),
        ({"a": [1]}, ["a >"], "no expression"),
        (
            {"a": [1]},
            ["__import__('os').system('true')"],
            "Call is not allowed|Attribute is not allowed",
        ),
        ({"a": [1]}, ["(lambda: 1)()"], "Call is not allowed|Lambda is not allowed"),
        ({"a": [1]}, ["a ** a ** a"], "Pow is not allowed"),
        ({"a": [1]}, ["a.real == 1"], "Attribute is not allowed"),
        ({"a": [1]}, ["[x for x in (1,)]"], "ListComp is not allowed"),
        ({"a": [0, 1]}, ["4 % a == 0"], "cannot be evaluated for a=0"),
        ({"a": ["x"]}, ["a < 3"], "cannot be evaluated for a='x'"),
        ({"a": [1]}, ["(" * 300 + "a" + ")" * 300], "no expression"),
        ({"a": [1]}, ["a == 1 or " * 2000 + "a == 1"], "too long"),
    ],
)
def test_a_bad_space_is_refused_with_the_reason(parameters, constraints, words):
    with pytest.raises(InvalidSpace, match=words):
        Space(parameters, constraints)


@pytest.mark.usefixtures("kind")
def test_what_is_no_member_is_told_why():
    space = Space(
        {"a": [1, 2, 4], "mode": ["x", "y"], "flag": [True, False]}, ["a < 4 or mode == 'x'"]
    )
    assert space.number({"mode": "x", "a": 4, "flag": True}) >= 0
    for wrong, words in (
        ({"a": 3, "mode": "x", "flag": True}, "a=3 is not one of its values; use 1, 2, 4"),
        ({"a": 4, "mode": "y", "flag": True}, "breaks 'a < 4 or mode == 'x''"),
        ({"a": 4, "mode": "x"}, "give a, mode, flag"),
        ({"a": True, "mode": "x", "flag": True}, "a=True is not one of its values"),
        ({"a": 1, "mode": "x", "flag": 1}, "flag=1 is not one of its values"),
    ):
        with pytest.raises(InvalidSpace) as refusal:
            space.number(wrong)
        assert words.replace("'a < 4 or mode == 'x''", "\"a < 4 or mode == 'x'\"") in str(
            refusal.value
        )
        assert not space.contains(wrong)


@pytest.mark.usefixtures("kind")
def test_models_see_places_of_numbers_and_a_column_for_each_word():
    space = Space({"a": [1, 10, 100], "mode": ["x", "y"], "one": [5]})
    numbers = [space.number({"a": 10, "mode": "y", "one": 5})]
    assert space.features(numbers).tolist() == [[0.5, 0.0, 1.0]]
    assert space.features([]).shape == (0, 3)


def test_a_space_of_one_configuration_serves():
    space = Space({"a": [7]})
    assert (space.size, space.configuration(0), space.neighbours(0)) == (1, {"a": 7}, [])
    assert space.features([0]).shape == (1, 1)
    with pytest.raises(IndexError):
        space.configuration(1)


NUMBERS = """
from farm.tune.space import Space
names = ["tile", "vector", "unroll", "order", "pack"]
space = Space({name: [1, 2, 4] for name in names}, ["tile * vector * unroll <= 8", "order + pack < 6"])
print([list(space.configuration(number).values()) for number in range(space.size)])
"""


def test_numbers_are_the_same_in_every_process():
    printed = {
        subprocess.run(
            [sys.executable, "-c", NUMBERS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3", "4")
    }
    assert len(printed) == 1
