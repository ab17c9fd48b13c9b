"""64 clients at once, with sessions, builds and jobs, on three devices.

Promised: whoever waits gets its turn: an account that asks for four times as much goes first no more often than the
others; everybody gets the right results; no two runs overlap on a device; nothing is left when all have gone.
Seen here: each result, the order in which the kernels of jobs began, as they wrote it down themselves, and what the
farm, the agents and their folders still hold.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import farm
from farm import te
from farm.client import Client
from farm.client.job import Outcome, Verdict
from farm.rpc import channels
from fault import witness
from fault.farms import until

CLIENTS = 64
ACCOUNTS = 8
GREEDY = 0
"""The account whose clients ask for four jobs each, where others ask for one."""
DEVICES = ("a1-cpu", "a2-cpu", "a3-cpu")
NUMBERS = itertools.count(1)


def function(number):
    x = te.placeholder((4,), "int32", name="x")
    return te.function("f", [x, te.compute((4,), lambda i: x[i] * 5 + number, name="y")])


@pytest.fixture
def running(shared_farm):
    shared_farm.start_tracker(offline_s=20.0)
    for name in ("a1", "a2", "a3"):
        builds = ["llvm/x86_64"] if name == "a1" else []
        shared_farm.start_agent(name, "cpu", builds=builds, slots=2)
    shared_farm.until_good(shared_farm.client(), *DEVICES)
    return shared_farm


class Everybody:
    """All clients: each submits, then half of them use a device or build, then all wait for their jobs."""

    def __init__(self, running):
        self.farm = running
        self.asked = threading.Barrier(CLIENTS + 1, timeout=120)
        self.account_of = {}
        self.digests = {
            number: farm.build({witness.TARGET: function(number)}).digest for number in range(4)
        }
        self.lock = threading.Lock()

    def numbers(self, count, account):
        with self.lock:
            found = list(itertools.islice(NUMBERS, count))
            self.account_of.update(dict.fromkeys(found, account))
        return found

    def live(self, index):
        account = index % ACCOUNTS
        with Client(self.farm.address) as client:
            numbers = self.numbers(4 if account == GREEDY else 1, account)
            jobs = [self.submit(client, it, account) for it in numbers]
            self.asked.wait()
            if index % 4 == 1:
                self.use(client)
            if index % 4 == 2:
                built = client.build({witness.TARGET: function(index % 16 // 4)})
                assert built.digest == self.digests[index % 16 // 4]
            for number, job in zip(numbers, jobs, strict=True):
                info = job.wait(240)
                assert (info.outcome, info.verdict) == (Outcome.COMPLETED, Verdict.PASS)
                assert len(info.attempts) == 1
                assert job.result(60).outputs[0].tolist() == [number + 1]

    def submit(self, client, number, account):
        values = np.array([number, 2, 0], np.int32)
        return client.submit(
            self.farm.artifact, "witness", [values], selector="kind=cpu", account=f"team-{account}"
        )

    def use(self, client):
        with client.acquire("kind=cpu", wait_s=240) as session:
            kernel = session.load(self.farm.artifact)["witness"]
            for number in self.numbers(2, None):
                assert kernel(np.array([number, 1, 0], np.int32)).tolist() == [number + 1]


@pytest.mark.timeout(600)
def test_many_clients_at_once_all_end_right_and_fairly_and_leave_nothing(running, monkeypatch):
    options = channels.channel_options()
    monkeypatch.setattr(  # a connection for each, as if each were in a process of its own
        channels, "channel_options", lambda: [*options, ("grpc.use_local_subchannel_pool", 1)]
    )
    client = running.client()
    everybody = Everybody(running)
    held = [client.hold(f"device_id={it}", ttl_s=300) for it in DEVICES]
    with ThreadPoolExecutor(CLIENTS) as threads:
        living = [threads.submit(everybody.live, index) for index in range(CLIENTS)]
        everybody.asked.wait()  # all have submitted
        for it in held:
            client.release(it.lease_id, it.epoch, it.lease_token)
        for it in living:
            it.result(300)

    entries = sorted(itertools.chain(*running.entries().values()), key=lambda it: it.at)
    assert witness.overlaps(entries) == []
    for number in everybody.account_of:
        assert witness.runs_of(entries, number) == (1, 1)
    begun = [everybody.account_of[it.job] for it in entries if it.kind == witness.START]
    begun = [it for it in begun if it is not None]  # jobs
    others = [at for at, account in enumerate(begun) if account != GREEDY]
    greedy = begun[: others[-1]].count(GREEDY)
    share = len(others) / (ACCOUNTS - 1)
    assert greedy <= 2 * share, (
        f"{greedy} of {begun.count(GREEDY)} went first; a share is {share:g}"
    )

    assert client.leases() == []
    assert client.jobs() == []
    until(lambda: {it.use for it in client.devices()} == {"idle"}, "the devices to be clean")
    for name, agent in running.agents.items():
        until(lambda agent=agent: agent.workers() == [], f"the workers of {name} to end")
        until(lambda name=name: list((running.folder(name) / "outbox").iterdir()) == [])
        assert list((running.folder(name) / "sessions").iterdir()) == []
        assert list((running.folder(name) / "builds").iterdir()) == []
