"""When canaries run, what their answers mean, and that each driver's device has one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from farm_agents import canary, health
from farm_agents.canary import canary_for
from farm_agents.drivers.base import GOOD, bad
from farm_agents.drivers.registry import DRIVERS
from farm_agents.health import DeviceHealth
from farm_agents.state.model import Health

from farm.api.v1 import session_pb2, tensor_pb2
from farm.target import Target

X86 = Target.parse("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64")


class Clock:
    def __init__(self):
        self.at = 100.0

    def now(self):
        return self.at


class Device:
    device_id = "d"

    def __init__(self):
        self.found, self.is_idle = GOOD, True
        self.on_check = lambda: None

    async def check(self):
        self.on_check()
        return self.found


class Story:
    """A device whose canary says what the test wants."""

    def __init__(self, monkeypatch, every_s=100.0):
        self.clock, self.device = Clock(), Device()
        self.answers, self.runs = [], 0
        self.gate = None
        monkeypatch.setattr(health, "run_canary", self._run)
        self.health = DeviceHealth(
            self.device, None, None, self.clock, every_s, lambda: self.device.is_idle
        )

    async def _run(self, device, cache, folder):
        self.runs += 1
        if self.gate is not None:
            await self.gate.wait()
        return self.answers.pop(0) if self.answers else ""

    def check(self, *answers, after=0.0):
        self.clock.at += after
        self.answers = list(answers)
        return asyncio.run(self.health.check())


@pytest.fixture
def story(monkeypatch):
    return Story(monkeypatch)


def test_canary_runs_on_join_and_then_after_its_time_or_a_crash(story):
    assert story.check() == GOOD
    assert story.check(after=99.0) == GOOD
    assert story.runs == 1
    story.check(after=2.0)
    assert story.runs == 2
    story.health.suspect()
    story.check()
    assert story.runs == 3


def test_canary_of_a_device_that_its_driver_finds_sick_waits_until_it_is_well(story):
    story.device.found = bad("no board")
    assert story.check() == bad("no board")
    assert (story.runs, story.health.recheck_s()) == (0, health.RECHECK_SICK_S)
    story.device.found = GOOD
    assert story.check() == GOOD
    assert (story.runs, story.health.recheck_s()) == (1, health.RECHECK_WELL_S)


def test_device_with_wrong_numbers_is_bad_is_tried_ever_more_seldom_and_has_to_be_right_twice(
    story,
):
    waits = []
    for number in range(8):
        assert story.check("canary: wrong", after=waits[-1] if waits else 0.0) == bad(
            "canary: wrong"
        )
        assert story.runs == number + 1
        waits.append(story.health.recheck_s())
    for wait_s, most_s in zip(waits, [2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert most_s / 2 <= wait_s <= most_s
    assert story.check(after=0.1) == bad("canary: wrong"), "not yet"
    assert story.check(after=60.0).health is Health.RECOVERING
    assert story.check(after=health.RECHECK_SICK_S) == GOOD
    assert story.check("canary: wrong", after=1000.0) == bad("canary: wrong")
    assert story.health.recheck_s() <= 2, "the waits begin anew"


def test_device_that_is_wrong_again_while_it_recovers_is_bad(story):
    story.check("canary: wrong")
    assert story.check(after=60.0).health is Health.RECOVERING
    assert story.check("canary: wrong", after=60.0) == bad("canary: wrong")


def test_canary_stands_aside_for_a_lease_and_is_due_again(story):
    async def tell():
        story.gate = asyncio.Event()
        checking = asyncio.ensure_future(story.health.check())
        while not story.runs:
            await asyncio.sleep(0)
        await story.health.stand_aside()
        assert await checking is None
        await story.health.stand_aside()  # nothing runs
        story.gate = None
        assert await story.health.check() == GOOD
        assert story.runs == 2

    asyncio.run(tell())


def test_canary_does_not_begin_on_a_device_that_was_given_away_while_its_driver_looked(story):
    story.device.on_check = lambda: setattr(story.device, "is_idle", False)
    assert story.check() is None
    assert story.runs == 0
    assert story.health.recheck_s() == health.RECHECK_SICK_S, "it is still due"
    story.device.on_check = lambda: None
    story.device.is_idle = True
    assert story.check() == GOOD
    assert story.runs == 1


class Worker:
    """A worker whose end waits for the test."""

    def __init__(self, error=None):
        self.error, self.gate, self.calls = error, asyncio.Event(), []

    async def child(self):
        self.calls.append("child")
        if self.error is not None:
            raise self.error

    async def ask(self, *request):
        await asyncio.Event().wait()

    async def kill(self):
        self.calls.append("kill")
        await self.gate.wait()
        self.calls.append("gone")

    def close(self):
        self.calls.append("close")


@pytest.fixture
def run_canary(monkeypatch, tmp_path):
    """Begin a canary on a worker that is the test's."""
    about = DRIVERS["cpu"]("").describe()

    def begin(worker):
        monkeypatch.setattr(canary, "SessionWorker", lambda *_: worker)
        device = SimpleNamespace(description=about)
        return asyncio.ensure_future(canary.run_canary(device, None, tmp_path))

    return begin


def test_canary_that_is_told_twice_to_stand_aside_still_ends_its_worker(run_canary):
    async def tell():
        worker = Worker()
        running = run_canary(worker)
        while "child" not in worker.calls:
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0.01)
            running.cancel()
        await asyncio.sleep(0.01)
        assert not running.done(), "its worker is not gone"
        worker.gate.set()
        await asyncio.wait({running})
        assert running.cancelled()
        assert worker.calls == ["child", "kill", "gone", "close"]

    asyncio.run(tell())


def test_canary_that_the_disk_has_no_room_for_says_so_and_does_not_end_the_agent(run_canary):
    async def tell():
        worker = Worker(OSError(28, "No space left on device"))
        worker.gate.set()
        cause = await run_canary(worker)
        assert "No space left on device" in cause
        assert "look at the agent's disk" in cause
        assert worker.calls[-1] == "close"

    asyncio.run(tell())


def test_agent_that_ends_ends_its_canary(story):
    async def tell():
        story.gate = asyncio.Event()
        checking = asyncio.ensure_future(story.health.check())
        while not story.runs:
            await asyncio.sleep(0)
        running = story.health._running
        checking.cancel()
        await asyncio.wait({checking})
        assert checking.cancelled()
        assert running.cancelled()

    asyncio.run(tell())


def test_canaries_can_be_turned_off(monkeypatch):
    story = Story(monkeypatch, every_s=0.0)
    assert story.check("canary: wrong") == GOOD
    assert story.runs == 0


@pytest.mark.parametrize(
    ("driver", "argument"),
    [
        ("cpu", ""),
        *(("ea", it) for it in ("ea8", "ea16", "ea32")),
        *(("qemu", it) for it in ("aarch64", "aarch64/cortex-a72", "armv7", "riscv64")),
        ("wasm", ""),
    ],
)
def test_device_of_each_driver_has_a_canary_for_what_it_runs_best(driver, argument):
    try:
        about = DRIVERS[driver](argument).describe()
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}")
    found = canary_for(about.targets, about.provides)
    assert found is not None
    accelerated = Target.parse(about.targets[0]).is_accelerator
    expected = ("canary_integers",) if accelerated else ("canary_floats", "canary_integers")
    assert found.symbols == expected
    assert len(found.artifact) <= 64 << 10, "it travels with the request"


def test_device_of_an_unknown_kind_has_none():
    assert canary_for(("ea -config=ea16",), ()) is None


@pytest.mark.parametrize("symbol", ["canary_integers", "canary_floats"])
def test_answers_are_judged_element_by_element(symbol):
    source = np.random.default_rng(1)
    (a, b), expected = canary._question(symbol, source)
    (c, _), _ = canary._question(symbol, source)
    assert (a != c).any(), "each question is another"
    assert expected.dtype.itemsize == 4
    assert (expected == a.astype(np.float64) @ b.astype(np.float64)).all()
    wrong = expected.copy()
    wrong[2, 3] += 1

    def judge(*arrays):
        outputs = [tensor_pb2.Tensor(inline=it.tobytes()) for it in arrays]
        return canary._difference(symbol, expected, session_pb2.CallReply(outputs=outputs))

    assert judge(expected) == ""
    assert judge(wrong) == (
        f"canary: {symbol} gave wrong numbers (1 of 64; at (2, 3) {wrong[2, 3]} instead of "
        f"{expected[2, 3]})"
    )
    for nonsense in ((), (expected, expected), (expected[:4],)):
        assert "gave something else than one array of 256 bytes" in judge(*nonsense)
