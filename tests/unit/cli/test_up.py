"""``farm up``: what is decided before anything starts."""

from __future__ import annotations

from pathlib import Path

from farm.cli.up import default_data_dir


def test_data_dir_is_below_the_state_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "kernel-farm"


def test_data_dir_with_a_relative_or_no_state_folder_is_in_the_home(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_data_dir() == Path.home() / ".local/state/kernel-farm"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_data_dir() == Path.home() / ".local/state/kernel-farm"


def test_fleet_file_without_ray_is_refused(cli, tmp_path):
    (tmp_path / "fleet.toml").write_text("")
    ended = cli("up", "--fleet", "fleet.toml", "--no-ray", "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "USAGE")


def test_malformed_address_is_refused(cli, tmp_path):
    ended = cli("up", "--listen", "nowhere", "--data-dir", tmp_path / "data", "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "INVALID_INPUT")
