"""An embedded farm: it starts whole, says why it cannot, and leaves no process behind, however it ends."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import threading
from pathlib import Path

import pytest
from farm_agents.fleet.fleet import default_fleet

import farm
from farm.client import Client
from farm.errors import InfrastructureError, InvalidInput, TrackerUnreachable
from farm.rpc import credentials
from farm.testing import DEFAULT_AGENTS, AgentPlan, EmbeddedFarm
from farm.testing.ports import claim

ONE = (AgentPlan("one", devices=("ea",)),)
SCRIPT = """
import json, sys, time
from farm.testing import AgentPlan, EmbeddedFarm
with EmbeddedFarm(sys.argv[1], plans=[AgentPlan("one", devices=("ea",))]) as embedded:
    print(json.dumps(embedded.pids), flush=True)
    embedded.wait()
"""


def test_default_agents_are_those_of_the_default_fleet():
    fleet = default_fleet(platform.machine())
    assert [(plan.agent_id, plan.builds, plan.slots) for plan in DEFAULT_AGENTS] == [
        (member.agent_id, member.builds, member.slots) for member in fleet.members
    ]
    assert [[*plan.devices] for plan in DEFAULT_AGENTS] == [
        [str(device).partition("@")[0] for device in member.devices] for member in fleet.members
    ]


def test_embedded_farm_starts_whole_and_leaves_nothing(gone, tmp_path):
    lines = []
    embedded = EmbeddedFarm("processes", plans=ONE, progress=lines.append, data_dir=tmp_path)
    with embedded:
        pids = embedded.pids
        assert list(pids) == ["tracker", "agent-one"]
        assert [agent.agent_id for agent in embedded.agents] == ["one"]
        assert [(d.device_id, d.health, d.use) for d in embedded.devices] == [
            ("one-ea", "good", "idle")
        ]
        with farm.connect(embedded.address) as client:
            assert client.devices() == list(embedded.devices)
        embedded.check()
        with pytest.raises(InvalidInput, match="running already"):
            embedded.start()
    gone(pids.values())
    with pytest.raises(InvalidInput, match="not running"):
        _ = embedded.address
    embedded.stop()  # the second time does nothing
    assert [line.split("] ")[1] for line in lines] == [
        f"starting the tracker at {lines[0].split()[-1]}",
        "starting agent one",
        f"the tracker serves at {lines[0].split()[-1]}",
        "agent one is connected",
        "ready: 1 agents, 1 devices",
        "agent-one ended",
        "tracker ended",
    ]


def test_embedded_farm_with_tls_knows_its_user():
    with EmbeddedFarm("processes", plans=ONE, tls=True) as embedded:
        assert credentials.find(embedded.address).ca.startswith(b"-----BEGIN CERTIFICATE")
        with farm.connect(embedded.address) as client:
            assert [agent.agent_id for agent in client.agents()] == ["one"]


def test_embedded_farm_restores_the_signal_handlers():
    numbers = (signal.SIGTERM, signal.SIGINT)
    former = [signal.signal(number, signal.SIG_DFL) for number in numbers]  # another farm's, maybe
    try:
        with EmbeddedFarm("processes", plans=()):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_DFL] * 2
    finally:
        for number, handler in zip(numbers, former, strict=True):
            signal.signal(number, handler)


def test_embedded_farm_in_a_thread_works(gone):
    pids = []

    def use():
        with EmbeddedFarm("processes", plans=()) as embedded:
            pids.extend(embedded.pids.values())

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(240)
    assert len(pids) == 1
    gone(pids)


def test_agent_that_cannot_start_is_told_with_its_log(gone):
    plans = (AgentPlan("one", devices=("toaster",)),)
    embedded = EmbeddedFarm("processes", plans=plans)
    with pytest.raises(InvalidInput) as caught:
        embedded.start()
    assert caught.value.message.startswith("agent-one: ended unasked (exit code 2); the end of")
    assert "device toaster: unknown driver" in caught.value.message
    assert embedded.pids == {}


def test_farm_that_is_late_is_told_and_ended():
    with pytest.raises(InfrastructureError, match="after 0 s; the end of its log"):
        EmbeddedFarm("processes", plans=ONE, start_limit_s=0.01).start()


def test_tracker_that_does_not_answer_at_once_is_asked_again(monkeypatch):
    asked = []

    class Deaf(Client):
        def agents(self):
            asked.append(self)
            if len(asked) == 1:
                raise TrackerUnreachable("tracker: nobody answers (tcp handshaker shutdown)")
            return super().agents()

    monkeypatch.setattr("farm.testing.embedded.Client", Deaf)
    with EmbeddedFarm("processes", plans=()):
        assert len(asked) > 1


def test_process_that_dies_is_noticed(wait_until):
    with EmbeddedFarm("processes", plans=ONE) as embedded:
        os.kill(embedded.pids["tracker"], signal.SIGKILL)
        with pytest.raises(InfrastructureError, match=r"tracker: ended unasked \(SIGKILL\)"):
            embedded.wait()


def test_process_that_does_not_end_is_killed(gone, monkeypatch):
    monkeypatch.setattr("farm.testing.embedded.TRACKER_END_LIMIT_S", 0.3)
    lines = []
    with EmbeddedFarm("processes", plans=(), progress=lines.append) as embedded:
        (pid,) = embedded.pids.values()
        os.kill(pid, signal.SIGSTOP)
    gone([pid])
    assert lines[-1].endswith("tracker was killed")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_farm_of_a_process_that_a_signal_ends_leaves_no_process(start, gone, number, code):
    process = start("-c", SCRIPT, "processes")
    pids = json.loads(process.stdout.readline())
    below = [pid for parent in pids.values() for pid in _descendants(parent)]
    process.send_signal(number)
    assert process.wait(240) == code
    gone([*pids.values(), *below])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_farm_under_ray_of_a_process_that_a_signal_ends_leaves_no_process(start, gone, number):
    pytest.importorskip("ray", reason="ray is missing: install kernel-farm[cluster]")
    process = start("-c", SCRIPT, "ray")
    line = process.stdout.readline()
    assert line, process.stderr.read()
    pids = json.loads(line)
    assert list(pids) == ["tracker", "fleet"]
    below = [pid for parent in pids.values() for pid in _descendants(parent)]
    assert any("raylet" in _command(pid) for pid in below)
    process.send_signal(number)
    process.wait(240)
    gone([*pids.values(), *below])


def test_unknown_kind_of_agents_is_refused():
    with pytest.raises(InvalidInput, match="use ray or processes"):
        EmbeddedFarm("threads")


@pytest.mark.parametrize(
    "listen", ["", "x", "127.0.0.1", ":1", "127.0.0.1:-1", "127.0.0.1:65536", "192.0.2.1:0"]
)
def test_address_that_cannot_be_is_refused(listen):
    with pytest.raises(InvalidInput, match="listen"):
        claim(listen)


def test_port_that_is_taken_is_refused_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        embedded = EmbeddedFarm("processes", plans=ONE, listen=listen)
        with pytest.raises(
            InvalidInput, match=rf"listen: {listen} cannot be used \(Address already"
        ):
            embedded.start()
        assert embedded.pids == {}


def test_data_folder_of_a_farm_that_runs_is_refused_and_its_logs_are_left_alone(tmp_path):
    with EmbeddedFarm("processes", plans=(), data_dir=tmp_path):
        before = (tmp_path / "logs" / "tracker.log").read_bytes()
        second = EmbeddedFarm("processes", plans=(), data_dir=tmp_path)
        with pytest.raises(InvalidInput, match="another farm uses it"):
            second.start()
        assert before
        assert (tmp_path / "logs" / "tracker.log").read_bytes().startswith(before)
    with EmbeddedFarm("processes", plans=(), data_dir=tmp_path) as after:
        assert after.pids.keys() == {"tracker"}


def test_claimed_port_goes_to_nobody_else_but_whoever_names_it():
    address = claim("127.0.0.1:0")
    port = int(address.rpartition(":")[2])
    others = [socket.create_server(("127.0.0.1", 0)) for _ in range(200)]
    try:
        assert port not in [other.getsockname()[1] for other in others]
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port
    finally:
        for other in others:
            other.close()


def _command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def _descendants(pid):
    found = [pid]
    for parent in found:
        found.extend(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))
    return found[1:]
