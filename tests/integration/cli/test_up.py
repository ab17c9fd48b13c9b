"""``farm up`` in a process of its own: ready, used by others, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import farm
from farm.testing import EmbeddedFarm

FARM = [sys.executable, "-c", "from farm.cli.main import main; main()"]
UP = [*FARM, "up", "--no-ray", "--listen", "127.0.0.1:0"]


@pytest.fixture
def up(tmp_path):
    """Start ``farm up``; what is left of it is killed after the test."""
    started = []

    def run(*arguments):
        command = [*UP, "--data-dir", str(tmp_path / "data"), *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()  # its children end with it
        process.communicate()


def read_document(process):
    """Read one JSON document that is followed by more time than output."""
    text = ""
    while line := process.stdout.readline():
        text += line
        if line == "}\n":
            return json.loads(text)
    raise AssertionError(process.stderr.read())


def children_of(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_up_serves_other_processes_until_sigterm_and_ends_with_0(up):
    process = up("-o", "json")
    ready = read_document(process)
    assert set(ready) == {"address", "data_dir", "agents", "devices"}
    assert "ea-1" in [agent["agent_id"] for agent in ready["agents"]]
    assert {agent["hosted_by"] for agent in ready["agents"]} == {"process"}
    other = subprocess.run(
        [*FARM, "devices", "--tracker", ready["address"], "-o", "json"],
        capture_output=True,
        text=True,
        timeout=180,
    )
    seen = [device["device_id"] for device in json.loads(other.stdout)["devices"]]
    assert seen == [device["device_id"] for device in ready["devices"]]
    taken = subprocess.run(
        [*FARM, "up", "--no-ray", "--listen", ready["address"], "--data-dir", ready["data_dir"]],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (taken.returncode, taken.stdout) == (2, "")
    assert f"error: listen: {ready['address']} cannot be used" in taken.stderr
    children = children_of(process.pid)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (0, "")
    assert err.splitlines()[-1].endswith("tracker ended")
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_up_says_what_to_type_next_and_ends_with_130_on_ctrl_c(up):
    process = up()
    text = ""
    while "Ctrl-C ends the farm" not in text:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        text += line
    address = text.split()[4].rstrip(";")
    assert f"  farm devices --tracker {address}\n" in text
    with farm.connect(address) as client:
        assert {device.observed for device in client.devices()} == {"online"}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "error: interrupted"


def test_up_whose_agent_dies_ends_with_6_and_the_log(up):
    process = up("-o", "json")
    read_document(process)
    os.kill(children_of(process.pid)[-1], signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (6, "")  # the one document was printed
    assert "\nerror: agent-ea-1: ended unasked (SIGKILL); the end of its log:\n" in err


@pytest.fixture
def empty_farm():
    """A tracker without agents."""
    with EmbeddedFarm("processes", plans=()) as embedded:
        yield embedded


def test_agent_joins_a_farm_as_a_plain_process_until_sigterm(empty_farm, tmp_path):
    command = ["agent", "--tracker", empty_farm.address, "--agent-id", "extra"]
    command += ["--device", "ea@extra-ea", "--work-dir", str(tmp_path / "extra")]
    process = subprocess.Popen([*FARM, *command], stderr=subprocess.PIPE, text=True)
    try:
        with farm.connect(empty_farm.address) as client:
            deadline = time.monotonic() + 180
            while "good" not in [d.health for d in client.devices("device_id=extra-ea")]:
                assert time.monotonic() < deadline, process.poll()
                time.sleep(0.1)
            (device,) = client.devices("device_id=extra-ea")
            assert (device.agent_id, device.observed) == ("extra", "online")
        children = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=180)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    assert children
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
