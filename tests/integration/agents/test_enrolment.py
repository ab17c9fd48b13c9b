"""An agent that no one knows yet: how it gets a credential, keeps it, and loses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

import farm
from farm.core.tokens import new_token
from farm.errors import NotAllowed
from farm.testing import EmbeddedFarm

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def empty_farm():
    """A tracker without agents."""
    with EmbeddedFarm("processes", plans=()) as embedded:
        yield embedded


@pytest.fixture
def start_agent(empty_farm, tmp_path):
    """Start an agent as another user would: with a token at most, and no credentials of the farm's user."""
    started = []

    def start(name, token="", work_dir=None):
        environment = {**os.environ, "FARM_CREDENTIALS": str(tmp_path / "others")}
        environment["FARM_TOKEN"] = token
        command = [sys.executable, "-m", "farm_agents", "--tracker", empty_farm.address]
        command += ["--agent-id", name, "--work-dir", str(work_dir or tmp_path / name)]
        command += ["--builds", "ea"]
        log = (tmp_path / f"{name}.log").open("ab")
        with log:
            started.append(subprocess.Popen(command, env=environment, stderr=log))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.wait(LIMIT_S)


def until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def online(client, name):
    return [a.observed for a in client.agents() if a.agent_id == name] == ["online"]


def end(process):
    process.terminate()
    assert process.wait(LIMIT_S) == 0


def test_agent_enrols_with_a_one_time_token_and_keeps_its_own_credential(
    empty_farm, start_agent, tmp_path
):
    with farm.connect(empty_farm.address) as client:
        once = client.create_token("enrolment").token
        agent = start_agent("desk", once)
        until(lambda: online(client, "desk"))
        path = tmp_path / "desk" / "credential.json"
        assert path.stat().st_mode & 0o777 == 0o600
        kept = json.loads(path.read_text())
        assert (kept["agent_id"], kept["tracker"]) == ("desk", empty_farm.address)
        assert kept["token"] != once
        (own,) = [it for it in client.tokens() if it.agent_id == "desk"]
        assert (own.role, own.verbs, own.revoked_at) == ("agent", ("agent", "blobs"), None)
        end(agent)
        until(lambda: not online(client, "desk"))
        start_agent("desk")  # nothing but what it kept
        until(lambda: online(client, "desk"))


def test_agent_without_a_token_stays_out_and_says_what_to_do(empty_farm, start_agent, tmp_path):
    agent = start_agent("stranger")
    log = tmp_path / "stranger.log"
    until(lambda: "no token to enrol with; set FARM_TOKEN" in log.read_text())
    assert agent.poll() is None
    with farm.connect(empty_farm.address) as client:
        assert "stranger" not in [it.agent_id for it in client.agents()]


@pytest.mark.parametrize("role", ["user", "none"])
def test_agent_with_a_token_that_enrols_nobody_stays_out(empty_farm, start_agent, tmp_path, role):
    with farm.connect(empty_farm.address) as client:
        token = new_token().text if role == "none" else client.create_token(role).token
        start_agent(f"wrong-{role}", token)
        log = tmp_path / f"wrong-{role}.log"
        words = "lacks the verb" if role == "user" else "not one of this farm"
        until(lambda: words in log.read_text())
        assert token not in log.read_text()
        assert f"wrong-{role}" not in [it.agent_id for it in client.agents()]
        assert not (tmp_path / f"wrong-{role}" / "credential.json").exists()


def test_agent_s_credential_made_by_hand_serves_that_agent(empty_farm, start_agent):
    with farm.connect(empty_farm.address) as client:
        start_agent("bench", client.create_token("agent", agent_id="bench").token)
        until(lambda: online(client, "bench"))


def test_agent_whose_credential_is_revoked_is_cut_off_until_it_enrols_again(
    empty_farm, start_agent, tmp_path
):
    with farm.connect(empty_farm.address) as client:
        agent = start_agent("shelf", client.create_token("enrolment").token)
        until(lambda: online(client, "shelf"))
        again = client.create_token("enrolment", agent_id="shelf").token
        (own,) = [it for it in client.tokens() if it.agent_id == "shelf" and it.role == "agent"]
        client.revoke_token(own.token_id)
        until(lambda: not online(client, "shelf"))
        assert agent.poll() is None
        end(agent)
        start_agent("shelf", again)
        until(lambda: online(client, "shelf"))
        with pytest.raises(NotAllowed):
            with_token(empty_farm, again)


def with_token(empty_farm, token):
    from farm.api.v1 import device_pb2, device_pb2_grpc
    from farm.rpc import Credentials, channel, rpc_errors

    with channel(empty_farm.address, credentials=Credentials(token)) as opened, rpc_errors():
        devices = device_pb2_grpc.DeviceServiceStub(opened)
        devices.ListDevices(device_pb2.ListDevicesRequest(), timeout=60)
