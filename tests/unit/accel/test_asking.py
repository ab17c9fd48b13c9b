"""An accelerator is asked in a process of its own: whatever it does there, the answer is one of the farm's errors."""

from __future__ import annotations

import pytest
from farm_agents.drivers.registry import driver_for
from farm_agents.state.model import Health
from plug_ins import GOOD

from farm.accel.asking import Facts, ask, probe
from farm.errors import InvalidInput, InvalidTarget, PlugInFailed
from farm.target.installed import installed

PROBED = GOOD.replace(
    "launch=launch)",
    "launch=launch, timing='native', configs={'NAME': 1, 'big': 2}, probe=lambda unit, config: ANSWER)",
)


@pytest.fixture(autouse=True)
def _fresh():
    installed.__globals__["_read"].cache_clear()


def test_facts_of_a_plug_in_are_what_it_says(packages):
    packages("zork", f"print('hello')\n{PROBED}")
    who = "zork (farm-zork 1.0)"
    assert ask("zork") == Facts("zork", who, 1, "native", ("target",), ("zork", "big"))


def test_facts_of_the_farms_own_accelerator_are_those_of_the_object():
    assert ask("ea").configs == ("ea8", "ea16", "ea32")
    assert probe("ea", "ea16", "") == ""


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise ValueError('no board')", "ValueError: no board"),
        ("import os; os._exit(3)", r"ended its process \(code 3"),
        ("import os; os.abort()", r"ended its process \(code -6"),
        ("import os; print('{}'); os._exit(0)", r"ended its process \(code 0"),
        ("print('[1]')\nACCELERATOR = None", "gave nonsense"),
        ("import sys; sys.exit('gone')", "SystemExit: gone"),
        (
            "class Bad(Exception):\n    def __str__(self): 1 / 0\nraise Bad",
            r"Bad: \(its text raises\)",
        ),
        (
            "class Bad:\n    def __repr__(self): 1 / 0\nACCELERATOR = Bad()",
            "gave nonsense .*text raises",
        ),
    ],
)
def test_plug_in_that_goes_wrong_is_told_with_its_name(packages, code, problem):
    packages("zork", code)
    with pytest.raises(PlugInFailed, match=problem) as error:
        ask("zork")
    assert "zork (farm-zork 1.0)" in error.value.message


def test_plug_in_that_does_not_answer_is_told_with_its_name_and_ended(packages):
    packages("zork", "while True: pass")
    with pytest.raises(PlugInFailed, match=r"zork \(farm-zork 1.0\): does not answer"):
        ask("zork", limit_s=0.5)


def test_plug_in_that_leaves_a_process_behind_is_answered_at_once(packages):
    packages(
        "zork",
        f"import os, time\nif not os.fork():\n    time.sleep(600)\n    os._exit(0)\n{GOOD}",
    )
    assert (
        ask("zork", limit_s=300.0).name == "zork"
    )  # a process that holds the pipes would take it all


def test_device_of_a_plug_in_is_described_by_what_it_says(packages):
    packages("zork", PROBED.replace("ANSWER", "''"))
    driver = driver_for("zork", "big/unit-7")
    about = driver.describe()
    assert about.targets[0] == "zork -config=big"
    assert "zork-config:big" in about.provides
    assert dict(about.labels)["kind"] == "zork"
    assert about.timing_class.value == "NATIVE"
    assert driver.loader().arch == "unit-7"
    assert driver.check().health is Health.GOOD


@pytest.mark.parametrize(
    ("code", "argument", "problem"),
    [
        (
            PROBED.replace("ANSWER", "'unit ' + repr(unit) + ' is unplugged'"),
            "/u1",
            "unit 'u1' is unplugged",
        ),
        (PROBED.replace("ANSWER", "1 / 0"), "", "probe raised ZeroDivisionError"),
        (PROBED.replace("ANSWER", "7"), "", "probe gave nonsense"),
        (PROBED, "huge", "unknown configuration; zork .* has zork, big"),
        ("raise KeyError('x')", "", "raised KeyError"),
    ],
)
def test_device_of_a_plug_in_that_cannot_be_used_is_bad_with_the_cause(
    packages, code, argument, problem
):
    packages("other-zork" if "KeyError" in code else "zork", code)
    driver = driver_for("other-zork" if "KeyError" in code else "zork", argument)
    driver.describe()
    found = driver.check()
    assert found.health is Health.BAD
    assert __import__("re").search(problem, found.cause), found.cause


def test_malformed_device_is_refused(packages):
    packages("zork")
    with pytest.raises(InvalidInput, match="malformed"):
        driver_for("zork", "a/b/c")
    with pytest.raises(InvalidInput, match=r"unknown driver; known drivers are cpu, .*zork"):
        driver_for("zurk", "")


def test_accelerator_that_two_packages_bring_is_no_device(packages):
    packages("zork")
    packages("zork", package="other")
    with pytest.raises(InvalidTarget, match="both bring it"):
        driver_for("zork", "")
