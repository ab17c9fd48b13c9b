"""What a worker limits for itself must not outlast the test that runs one in this process."""

from __future__ import annotations

import resource

import pytest


@pytest.fixture(autouse=True)
def same_cpu_limit():
    """Give back the CPU time that a worker's code has limited: SIGXCPU would end all tests, long after."""
    before = resource.getrlimit(resource.RLIMIT_CPU)
    yield
    resource.setrlimit(resource.RLIMIT_CPU, before)
