"""The demo's own promise: what a stranger sees."""

from __future__ import annotations

import json

import pytest

from farm.demo import run_demo
from farm.errors import FarmError
from farm.runtime.qemu import qemu_loader


def aarch64_can_run():
    try:
        qemu_loader("aarch64")
    except FarmError:
        return False
    return True


@pytest.fixture(scope="module")
def result():
    lines = []
    outcome = run_demo(lines.append, use_ray=False)
    assert any("built" in line for line in lines)
    return outcome


def test_demo_is_right_on_every_device(result):
    assert result.ok
    assert result.accuracy >= 0.95
    assert result.images == 450
    ran = {
        device.target.partition(" ")[0] + device.timing_class: device for device in result.devices
    }
    expected = {"easimulated", "llvmnative"} | ({"llvmemulated"} if aarch64_can_run() else set())
    assert set(ran) == expected
    assert all(device.agrees and device.median_s > 0 for device in result.devices)


def test_demo_runs_integer_layers_on_the_accelerator_and_the_rest_on_its_host(result):
    placement = next(d.placement for d in result.devices if d.target.startswith("ea"))
    on_ea = {name for name, target in placement.items() if target.startswith("ea ")}
    assert on_ea == {"dense1", "dense2"}
    assert set(placement) - on_ea == {"quantise", "softmax", "network"}


def test_demo_json_has_the_promised_keys(result):
    document = json.loads(json.dumps(result.to_json()))
    assert {"accuracy", "images", "artifact", "builds", "devices"} <= set(document)
    assert {"digest", "size_bytes", "sections"} == set(document["artifact"])
    assert {"target", "format", "size_bytes"} <= set(document["artifact"]["sections"][0])
    assert {"target", "agent_id", "seconds"} <= set(document["builds"][0])
    assert {"device_id", "target", "agrees", "median_s"} <= set(document["devices"][0])
    assert len({build["agent_id"] for build in document["builds"]}) == 3


def test_demo_text_names_agents_sections_and_devices(result):
    text = result.to_text()
    for build in result.builds:
        assert build.agent_id in text
    for device in result.devices:
        assert device.device_id in text
    assert result.digest in text
    assert "DISAGREES" not in text
