"""What an agent is told to be: ids, devices, JSON, the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from farm_agents.main import main, parse_arguments
from farm_agents.spec import AgentSpec, DeviceSpec, parse_devices

from farm.errors import InvalidInput


def spec(**changes):
    values = {
        "tracker": "127.0.0.1:7460",
        "agent_id": "a1",
        "builds": ("llvm/x86_64", "ea"),
        "slots": 2,
        "devices": parse_devices(["cpu", "qemu:aarch64@arm", "cpu"], "a1"),
        "work_dir": Path("/w"),
    }
    return AgentSpec(**{**values, **changes})


def test_devices_have_ids_of_their_agent_unless_named():
    assert parse_devices(["cpu", "qemu:aarch64@arm", "cpu", "ea:ea16"], "a1") == (
        DeviceSpec("cpu", "", "a1-cpu"),
        DeviceSpec("qemu", "aarch64", "arm"),
        DeviceSpec("cpu", "", "a1-cpu-2"),
        DeviceSpec("ea", "ea16", "a1-ea"),
    )


@pytest.mark.parametrize("text", ["", "CPU", "cpu:", "cpu:a b", "cpu@", "cpu@Up", "cpu@../x", "@x"])
def test_devices_malformed_are_refused(text):
    with pytest.raises(InvalidInput, match=r"^device"):
        parse_devices([text], "a1")


def test_spec_survives_json():
    for given in (spec(), spec(canary_every_s=7.5)):
        assert AgentSpec.from_json(given.to_json()) == given


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent_id": "A"}, "agent id: malformed"),
        ({"agent_id": "a/../b"}, "agent id: malformed"),
        ({"slots": 257}, "impossible slots"),
        ({"slots": -1}, "impossible slots"),
        ({"canary_every_s": -1.0}, "impossible time between canaries"),
        ({"canary_every_s": float("nan")}, "impossible time between canaries"),
        (
            {"builds": ("llvm/x86 64",)},
            r"unknown family \('llvm/x86 64'\); known are ea, llvm/aarch64,",
        ),
        ({"builds": ("nope",)}, r"unknown family \('nope'\); known are ea, llvm/aarch64,"),
        ({"builds": ("ea/x",)}, "unknown family"),
        ({"builds": ("llvm",)}, "unknown family"),
        ({"builds": ("raspberrypi-4b",)}, "unknown family"),
        ({"builds": (), "devices": ()}, "neither builds nor devices"),
        ({"devices": parse_devices(["cpu@d", "ea@d"], "a1")}, "two devices of one id"),
    ],
)
def test_spec_malformed_is_refused(changes, message):
    with pytest.raises(InvalidInput, match=message):
        spec(**changes)


def test_arguments_give_the_spec(tmp_path):
    text = (
        "--tracker 127.0.0.1:7460 --agent-id a1 --builds llvm/x86_64,ea --slots 2 "
        "--device cpu --device qemu:aarch64@arm --device cpu --work-dir"
    )
    found = parse_arguments([*text.split(), str(tmp_path)])
    assert found == spec(work_dir=tmp_path)


def test_main_with_a_family_that_no_compiler_knows_ends_with_exit_code_2(tmp_path, capsys):
    where = ["--tracker", "127.0.0.1:1", "--agent-id", "a1", "--work-dir", str(tmp_path)]
    assert main([*where, "--builds", "ea,llvm/nope"]) == 2
    assert "unknown family (llvm/nope): no compiler here knows" in capsys.readouterr().err


def test_main_refuses_a_malformed_agent_with_exit_code_2(tmp_path, capsys):
    arguments = ["--tracker", "127.0.0.1:1", "--agent-id", "Bad", "--work-dir", str(tmp_path)]
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("agent id: malformed ('Bad')")
