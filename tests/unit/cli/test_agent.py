"""``farm agent``: which process it becomes."""

from __future__ import annotations

import os
import sys

import pytest
from farm_agents.main import parse_arguments


class Became(BaseException):
    """Raised in place of becoming another process."""


@pytest.fixture
def executed(monkeypatch):
    """Record what would be executed."""
    calls = []

    def execv(path, arguments):
        calls.append((path, arguments))
        raise Became

    monkeypatch.setattr(os, "execv", execv)
    return calls


def test_agent_becomes_an_agent_with_the_same_arguments(cli, executed, tmp_path):
    with pytest.raises(Became):
        cli(
            *("agent", "--tracker", "10.0.0.1:7460", "--agent-id", "shelf-1", "--slots", "2"),
            *("--builds", "llvm/x86_64", "--builds", "ea", "--device", "cpu@c", "--device", "ea"),
            *("--work-dir", tmp_path / "work"),
        )
    ((path, (program, dash_m, module, *arguments)),) = executed
    assert (path, program, dash_m, module) == (sys.executable, sys.executable, "-m", "farm_agents")
    spec = parse_arguments(arguments)
    assert (spec.tracker, spec.agent_id, spec.builds, spec.slots) == (
        "10.0.0.1:7460",
        "shelf-1",
        ("llvm/x86_64", "ea"),
        2,
    )
    assert [str(device) for device in spec.devices] == ["cpu@c", "ea@shelf-1-ea"]
    assert spec.work_dir == tmp_path / "work"


def test_agent_without_a_work_dir_gets_one_below_the_state_folder(
    cli, executed, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("FARM_TRACKER", "10.0.0.1:7460")
    with pytest.raises(Became):
        cli("agent", "--agent-id", "shelf-1", "--device", "cpu")
    spec = parse_arguments(executed[0][1][3:])
    assert spec.tracker == "10.0.0.1:7460"
    assert spec.work_dir == tmp_path / "state" / "kernel-farm" / "agents" / "shelf-1"
    assert spec.work_dir.is_dir()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tracker", "10.0.0.1:7460"),
        ("--agent-id", "shelf-1"),
        ("--tracker", "10.0.0.1:7460", "--agent-id", "../x", "--device", "cpu"),
        ("--tracker", "10.0.0.1:7460", "--agent-id", "x", "--slots", "-1", "--device", "cpu"),
        ("--tracker", "10.0.0.1:7460", "--agent-id", "x"),
        ("--tracker", "10.0.0.1:7460", "--agent-id", "x", "--builds", "nope"),
        ("--tracker", "10.0.0.1:7460", "--agent-id", "x", "--builds", "ea,llvm"),
        ("--tracker", "10.0.0.1:7460", "--agent-id", "x", "--builds", "ea,"),
    ],
)
def test_agent_with_arguments_that_cannot_be_is_refused(cli, executed, arguments):
    assert cli("agent", *arguments).code == 2
    assert executed == []


def test_agent_id_of_dots_is_refused(cli, executed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert cli("agent", "--tracker", "h:1", "--agent-id", "..", "--device", "cpu").code == 2
    assert executed == []


@pytest.mark.parametrize(("given", "every_s"), [((), 300.0), (("90s",), 90.0), (("0s",), 0.0)])
def test_agent_runs_canaries_as_often_as_it_is_told(cli, executed, tmp_path, given, every_s):
    option = [word for span in given for word in ("--canary-every", span)]
    with pytest.raises(Became):
        cli(
            *("agent", "--tracker", "10.0.0.1:7460", "--agent-id", "a", "--device", "cpu"),
            *("--work-dir", tmp_path, *option),
        )
    assert parse_arguments(executed[0][1][3:]).canary_every_s == every_s


def test_agent_with_a_span_that_is_none_is_refused(cli, tmp_path):
    assert cli("agent", "--agent-id", "a", "--device", "cpu", "--canary-every", "often").code == 2
