"""Fleet files: what they give, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from farm_agents.fleet.fleet import Fleet, default_fleet
from farm_agents.spec import DeviceSpec

from farm.errors import InvalidFleet

FILE = """
[[agent]]
name = "shelf"
count = 2
builds = ["llvm/aarch64"]
slots = 3
devices = ["qemu:aarch64"]
resources = { board = 1 }

[[agent]]
name = "bench"
devices = ["cpu"]
canary_every_s = 60
"""


def test_fleet_file_gives_each_agent():
    members = Fleet.parse(FILE).members
    assert [member.agent_id for member in members] == ["shelf-1", "shelf-2", "bench"]
    second = members[1]
    assert (second.builds, second.slots) == (("llvm/aarch64",), 3)
    assert second.devices == (DeviceSpec("qemu", "aarch64", "shelf-2-qemu"),)
    assert second.resources == (("board", 1.0),)
    spec = second.spec("127.0.0.1:7460", Path("/w"))
    assert (spec.work_dir, spec.hosted_by, spec.agent_id) == (Path("/w/shelf-2"), "ray", "shelf-2")
    assert [it.spec("127.0.0.1:1", Path()).canary_every_s for it in members] == [300, 300, 60]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no [[agent]] entry"),
        ("agent = 3", "no [[agent]] entry"),
        ("x = 1", "unknown key ('x'); known: [[agent]]"),
        ("[[agent]\n", "no TOML"),
        ("[[agent]]\n", "agent 1: name: wrong value ('None'); write a string"),
        (
            '[[agent]]\nname = "a"\nfoo = 1',
            "agent 1: unknown key ('foo'); known keys are name, count,",
        ),
        ('[[agent]]\nname = "a"', "agent 1: agent a: neither builds nor devices"),
        ('[[agent]]\nname = "A"', "agent 1: agent id: malformed ('A')"),
        ('[[agent]]\nname = "a"\ncount = 0', "agent 1: count: wrong value ('0'); write an integer"),
        ('[[agent]]\nname = "a"\ncount = true', "agent 1: count: wrong value ('True')"),
        ('[[agent]]\nname = "a"\nslots = 1000', "agent 1: slots: wrong value ('1000')"),
        ('[[agent]]\nname = "a"\nbuilds = "ea"', "agent 1: builds: wrong value ('ea')"),
        ('[[agent]]\nname = "a"\nbuilds = ["x y"]', "agent 1: builds: unknown family ('x y')"),
        ('[[agent]]\nname = "a"\ndevices = [1]', "agent 1: devices: wrong value ('[1]')"),
        ('[[agent]]\nname = "a"\ndevices = ["C"]', "device: malformed ('C')"),
        ('[[agent]]\nname = "a"\nresources = 1', "agent 1: resources: wrong value ('1')"),
        (
            '[[agent]]\nname = "a"\nresources = {b = -1}',
            "agent 1: resources.b: wrong value ('-1')",
        ),
        ('[[agent]]\nname = "a"\nresources = {CPU = 1}', "agent 1: resources.CPU: wrong value"),
        (
            '[[agent]]\nname = "a"\nbuilds = ["ea"]\n[[agent]]\nname = "a"\nbuilds = ["ea"]',
            "agent a appears twice",
        ),
        (
            '[[agent]]\nname = "a"\ndevices = ["cpu@d"]\n[[agent]]\nname = "b"\ndevices = ["ea@d"]',
            "device d appears twice",
        ),
        (
            '[[agent]]\nname = "a"\ncount = 2\ndevices = ["cpu@d"]',
            "agent 1: devices: a device id of its own with count = 2",
        ),
        (
            "".join(f'[[agent]]\nname = "{x}"\ncount = 900\nbuilds = ["ea"]\n' for x in "ab"),
            "too many agents",
        ),
    ],
)
def test_fleet_file_wrong_is_refused_with_its_place(text, message):
    with pytest.raises(InvalidFleet) as caught:
        Fleet.parse(text, "f.toml")
    assert caught.value.message.startswith("fleet f.toml: ")
    assert message in caught.value.message


def test_fleet_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InvalidFleet, match="cannot be read"):
        Fleet.load(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(InvalidFleet, match="not UTF-8"):
        Fleet.load(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(InvalidFleet, match="too large"):
        Fleet.load(tmp_path / "large")


def test_default_fleet_has_one_agent_of_each_kind():
    members = default_fleet("x86_64").members
    assert [(m.agent_id, m.builds, str(m.devices[0])) for m in members] == [
        ("cpu-1", ("llvm/x86_64",), "cpu@cpu-1-cpu"),
        ("aarch64-1", ("llvm/aarch64",), "qemu:aarch64@aarch64-1-qemu"),
        ("ea-1", ("ea",), "ea:ea16@ea-1-ea"),
    ]
    assert [m.agent_id for m in default_fleet("arm64").members] == ["cpu-1", "ea-1"]
