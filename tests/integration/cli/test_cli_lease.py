"""A device taken at the command line, and used by later commands, on a real farm."""

from __future__ import annotations

import pytest

CPU = "kind=cpu,emulator!=qemu-user"


@pytest.fixture
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_acquired_device_is_nobody_else_s_until_it_is_released(cli, kernels, state):
    assert cli("build", kernels, "--out", "k.farm").code == 0
    held = cli("acquire", CPU, "--ttl", "60", "-o", "json").json
    lease = held["lease_id"]
    try:
        busy = cli("run", "k.farm", "double", "--random", "1", "--device", CPU, "--wait", "0")
        assert busy.code == 4
        for _ in range(2):
            ended = cli("run", "k.farm", "double", "--random", "1", "--lease", lease, "-o", "json")
            assert ended.code == 0, ended.err
            assert ended.json["device"]["device_id"] == held["device"]["device_id"]
    finally:
        released = cli("release", lease, "--epoch", str(held["epoch"]))
    assert released.code == 0, released.err
    ended = cli("run", "k.farm", "double", "--random", "1", "--lease", lease, "-o", "json")
    assert ended.code != 0
    assert cli("run", "k.farm", "double", "--random", "1", "--device", CPU).code == 0
