"""The CPU's driver: its argument is a number of threads."""

from __future__ import annotations

import os

import pytest
from farm_agents.drivers.base import Health
from farm_agents.drivers.cpu import CpuDriver, host_arch
from farm_agents.worker.loaders import LoaderSpec

from farm.errors import InfrastructureError


@pytest.mark.parametrize(("argument", "threads"), [("", 1), (host_arch(), 1), ("1", 1)])
def test_threads_are_one_unless_asked_for(argument, threads):
    driver = CpuDriver(argument)
    assert driver.check().health is Health.GOOD
    assert driver.loader().threads == threads
    assert dict(driver.describe().labels)["threads"] == str(threads)


def test_threads_reach_the_worker_up_to_the_number_of_cores():
    cores = min(os.cpu_count(), 64)
    driver = CpuDriver(str(cores))
    assert driver.check().health is Health.GOOD
    assert LoaderSpec.from_config(driver.loader().to_config()).threads == cores
    assert LoaderSpec.from_config(driver.loader().to_config()).open().threads == cores


@pytest.mark.parametrize("argument", ["0", "1000", "100000000", "sparc"])
def test_impossible_arguments_make_a_bad_device_that_says_why(argument):
    found = CpuDriver(argument).check()
    assert found.health is Health.BAD
    assert "use cpu" in found.cause


def test_malformed_numbers_of_threads_are_refused():
    config = {"kind": "native", "arch": "", "targets": [], "provides": [], "threads": "2"}
    with pytest.raises(InfrastructureError, match="malformed loader configuration"):
        LoaderSpec.from_config(config)
