"""Networks that lose everything for a while, in both directions or in one, and networks that are slow.

Promised: results commit when the network is back, unless a newer attempt has begun; logs have no gap and nothing twice;
leases end when their time is over, whoever cannot be reached; no two runs overlap on a device.
Seen here, with the parts of a farm in network namespaces of their own and a cable that is cut (`links`): outcomes and
attempts of jobs, the letters that a kernel printed, and the kernels' own witness.
"""

from __future__ import annotations

import itertools
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import farm
from farm import te
from farm.client import Client
from farm.client.job import AttemptState
from farm.errors import Fenced
from farm.rpc.credentials import path_of
from fault.farms import Farm, until
from fault.links import HERE, Link, Relay, check_can_link
from fault.witness import LETTERS, TARGET

NUMBERS = itertools.count(1)
OFFLINE_S = 5.0
SHORT_S = 0.8
"""Shorter than what makes an agent lost."""
CUTS = [
    pytest.param({"out": True, "back": True}, id="cut"),
    pytest.param({"out": True, "back": False}, id="tracker-cannot-be-heard"),
    pytest.param({"out": False, "back": True}, id="tracker-cannot-hear"),
]
LONG_CUTS = [
    CUTS[0],
    *(pytest.param(*it.values, id=it.id, marks=pytest.mark.campaign) for it in CUTS[1:]),
]


@pytest.fixture(scope="module")
def link():
    check_can_link()
    made = Link()
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(intel, link, tmp_path_factory):
    """The tracker and agent a1 are at one end, agent a2 is at the other."""
    with (
        pytest.MonkeyPatch.context() as patch,
        Farm(tmp_path_factory.mktemp("net"), address=f"{HERE}:7460") as made,
    ):
        patch.setenv("FARM_INSECURE", "1")
        insecure = ("--insecure",)
        link.here.run(lambda: made.start_tracker(offline_s=OFFLINE_S, arguments=insecure))
        link.here.run(lambda: made.start_agent("a1", "cpu"))
        link.there.run(lambda: made.start_agent("a2", "cpu", builds=["llvm/x86_64"]))
        until(lambda: path_of(made.address).exists(), "the tracker to serve")
        yield made


@pytest.fixture(scope="module")
def connect(running):
    """Make a client at one end of the cable."""
    relays = []

    def make(side):
        relays.append(Relay(side, running.address))
        shutil.copy(path_of(running.address), path_of(relays[-1].address))
        client = Client(relays[-1].address)
        running.clients.append(client)
        return client

    yield make
    for relay in relays:
        path_of(relay.address).unlink()
        relay.close()


@pytest.fixture(scope="module")
def client(running, link, connect):
    """A client beside the tracker."""
    client = connect(link.here)
    running.until_good(client, "a1-cpu", "a2-cpu")
    return client


@pytest.fixture(autouse=True)
def _mended(running, link, client):
    yield
    link.mend()
    link.delay_s = 0.0
    running.until_good(client, "a1-cpu", "a2-cpu")


def letters(count):
    return (LETTERS * (count // len(LETTERS) + 1))[:count]


def log_of(job):
    return b"".join(chunk.data for chunk in job.logs(timeout_s=60))


def states(job):
    return [it.state for it in job.status().attempts]


@pytest.mark.parametrize("cut", CUTS)
def test_run_over_a_short_cut_is_one_run_with_a_whole_log(running, client, link, cut):
    number = next(NUMBERS)
    job = running.submit(client, number, ticks=120, prints=True, selector="device_id=a2-cpu")
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(log_of, job)
        running.until_runs(number)
        until(lambda: job.status().log_chunks > 0, "the first of its log")
        link.cut(**cut)
        time.sleep(SHORT_S)
        link.mend()
        assert following.result(60) == letters(120)
    running.check(client)
    assert states(job) == [AttemptState.DONE]
    assert link.lost > 0


@pytest.mark.parametrize("cut", LONG_CUTS)
def test_run_that_ends_in_a_long_cut_is_lost_until_its_result_comes_and_counts(
    running, client, link, cut
):
    number = next(NUMBERS)
    job = running.submit(client, number, ticks=50, selector="device_id=a2-cpu")
    running.until_runs(number)
    link.cut(**cut)
    until(lambda: states(job) == [AttemptState.LOST], "the run to be given up")
    assert running.runs(number) == (1, 1)
    link.mend()
    running.check(client)
    assert states(job) == [AttemptState.DONE]


def test_run_that_was_made_again_elsewhere_in_a_cut_is_superseded(running, client, link):
    number = next(NUMBERS)
    with client.acquire("device_id=a1-cpu"):
        job = running.submit(client, number, ticks=50)
        running.until_runs(number)
        link.cut()
        until(lambda: states(job) == [AttemptState.LOST])
    until(lambda: states(job) == [AttemptState.LOST, AttemptState.DONE], "the run elsewhere")
    link.mend()
    until(lambda: states(job) == [AttemptState.SUPERSEDED, AttemptState.DONE], "the late result")
    assert running.runs(number) == (2, 2)  # on two devices
    running.check(client, reruns=True)


@pytest.mark.parametrize("cut", CUTS)
def test_build_and_call_over_a_short_cut_end_right(running, client, link, cut):
    number = next(NUMBERS)
    x = te.placeholder((4,), "int32", name="x")
    function = te.function("f", [x, te.compute((4,), lambda i: x[i] * 2 - number, name="y")])
    with (
        ThreadPoolExecutor(2) as threads,
        client.acquire("device_id=a2-cpu", ttl_s=30) as session,
    ):
        witness = session.load(running.artifact)["witness"]
        calling = threads.submit(witness, np.array([number, 60, 0], np.int32))
        running.until_runs(number)
        link.cut(**cut)
        building = threads.submit(client.build, {TARGET: function})
        time.sleep(SHORT_S)
        link.mend()
        assert calling.result(60).tolist() == [number + 1]
        assert building.result(60).digest == farm.build({TARGET: function}).digest
    assert running.runs(number) == (1, 1)
    running.check(client)


@pytest.mark.parametrize("cut", LONG_CUTS)
def test_client_that_is_cut_off_loses_its_device_in_time_and_its_job_goes_on(
    running, client, link, connect, cut
):
    number, other, later = next(NUMBERS), next(NUMBERS), next(NUMBERS)
    far = connect(link.there)
    session = far.acquire("device_id=a1-cpu", ttl_s=1.5)
    witness = session.load(running.artifact)["witness"]
    assert witness(np.array([other, 0, 0], np.int32)).tolist() == [other + 1]
    job = running.submit(far, number, ticks=10, selector="device_id=a1-cpu")  # after the session
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(job.wait, 60)
        link.cut(**cut)
        near = client.job(job.job_id)
        if cut["back"]:  # renewals are lost
            until(lambda: near.status().ended, f"the device to be free again\n{running.story()}")
        else:
            time.sleep(2.5)
        link.mend()
        if cut["back"]:
            with pytest.raises(Fenced):
                witness(np.array([later, 0, 0], np.int32))
        session.close()
        assert waiting.result(60).ended
    running.check(client)
    assert running.runs(later) == (0, 0)


def test_slow_network_gives_the_same_results(running, client, link, connect):
    link.delay_s = 0.1
    far = connect(link.there)
    number, other = next(NUMBERS), next(NUMBERS)
    job = running.submit(far, number, ticks=40, prints=True, selector="device_id=a2-cpu")
    with far.acquire("device_id=a1-cpu", ttl_s=5) as session:
        witness = session.load(running.artifact)["witness"]
        assert witness(np.array([other, 1, 0], np.int32)).tolist() == [other + 1]
    assert log_of(job) == letters(40)
    running.check(client)
    assert states(job) == [AttemptState.DONE]
