"""Cores that are measured on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from farm_agents import cores


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host of four cores, with locks of its own."""
    monkeypatch.setenv("KERNEL_FARM_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})


def test_each_measurer_has_a_core_of_its_own_and_the_first_stays_free(host):
    claims = [cores.claim_core() for _ in range(4)]
    assert [claim and claim[0] for claim in claims] == [3, 2, 1, None]
    assert cores.free_cores() == {0}
    claims[1][1].release()
    assert cores.free_cores() == {0, 2}
    assert cores.claim_core()[0] == 2


def test_claim_of_a_process_that_ended_is_free_again(host):
    script = "from farm_agents import cores; print(cores.acquire(cores._name(3)).path)"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert cores.claim_core()[0] == 3


def test_others_are_kept_off_cores_that_are_measured_on(host, monkeypatch):
    moved = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, free: moved.append((pid, free)))
    cores.keep_off(7)
    assert moved == []
    core, lock = cores.claim_core()
    cores.keep_off(7)
    assert moved == [(7, {0, 1, 2, 3} - {core})]
    lock.release()


def test_host_of_one_core_has_none_to_claim(host, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert cores.claim_core() is None
    assert cores.free_cores() == {0}
