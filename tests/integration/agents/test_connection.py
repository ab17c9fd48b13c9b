"""The control stream of an agent over real gRPC: reconnecting, fencing, what is reported."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
from farm_agents import stream
from farm_agents.agent import run_agent
from farm_agents.spec import AgentSpec, parse_devices
from farm_agents.worker import processes

import farm
from farm.api.v1 import device_pb2, tensor_pb2
from farm.codegen import toolchain_of
from farm.errors import Fenced, InvalidInput
from farm.target import Target

LIMIT_S = 120.0


def test_agent_reports_itself_and_its_devices(run_farm):
    async def story(tracker, spec):
        await tracker.device_is_good()
        state = tracker.states["a1"]
        assert (state.agent_id, list(state.builds), state.build_slots) == (
            "a1",
            ["llvm/riscv64"],
            2,
        )
        assert (state.hosted_by, state.version) == ("process", farm.__version__)
        assert state.instance_id.startswith("instance-")
        (device,) = state.devices
        labels = device.description.labels
        assert (labels["kind"], labels["device_id"]) == ("cpu", "a1-cpu")
        assert device.description.timing_class == device_pb2.TIMING_CLASS_NATIVE
        assert device.description.targets[0].startswith("llvm ")
        assert any(name.startswith("arch:") for name in device.description.provides)
        assert (device.use, device.epoch) == (device_pb2.USE_IDLE, 0)

    run_farm(story, builds=("llvm/riscv64",), slots=2)


async def tries(tracker, count):
    """Wait until the agent has dialled so often where its tracker was, and was hung up on."""
    dialled = 0

    async def hang_up(reader, writer):
        nonlocal dialled
        dialled += 1
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", tracker.port):
        await tracker.until(lambda: dialled >= count)


def test_agent_that_loses_the_tracker_reconnects_and_keeps_the_session(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        before = tracker.states["a1"].instance_id
        await tracker.stop()
        tracker.states.clear()
        await tries(tracker, 1)
        await tracker.start()  # on the same port
        await tracker.device_is("LEASED", 1)
        assert tracker.states["a1"].instance_id == before
        await tracker.until(lambda: len(tracker.opened) == 2)
        tensor = tensor_pb2.Tensor(dtype="int32", shape=[1], inline=bytes(4))
        reply = await client.call("increment", tensor)  # what was loaded is still loaded
        assert np.frombuffer(reply.called.outputs[0].inline, "<i4") == [1]

    run_farm(story)


def test_agent_without_tracker_waits_for_it(run_farm):
    async def story(tracker, spec):
        await tracker.device_is_good()
        await tracker.stop()
        await tries(tracker, 3)
        tracker.states.clear()
        await tracker.start()
        await tracker.device_is_good()

    run_farm(story)


def test_agent_whose_tracker_is_silent_dials_again_and_keeps_the_session(
    run_farm, hostile, monkeypatch
):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        monkeypatch.setattr(stream, "SILENCE_S", 0.5)
        await tracker.notify()  # from now on it waits for no longer than that
        before = tracker.connections
        await tracker.until(lambda: tracker.connections >= before + 2)
        tensor = tensor_pb2.Tensor(dtype="int32", shape=[1], inline=bytes(4))
        reply = await client.call("increment", tensor)
        assert np.frombuffer(reply.called.outputs[0].inline, "<i4") == [1]

    run_farm(story)


def test_agent_names_the_compilers_of_its_families(run_farm):
    async def story(tracker, spec):
        await tracker.until(lambda: "a1" in tracker.states and tracker.states["a1"].toolchains)
        found = tracker.states["a1"].toolchains
        assert found == {
            "llvm/x86_64": toolchain_of(Target.parse("llvm -mtriple=x86_64-linux-gnu")),
            "ea": toolchain_of(Target.parse("ea")),
        }

    run_farm(story, devices=(), builds=("llvm/x86_64", "ea"))


def test_agent_that_is_fenced_ends(tmp_path, run_farm):
    async def story(tracker, spec):
        await tracker.device_is_good()
        second = AgentSpec(
            tracker=spec.tracker,
            agent_id="a2",
            builds=("ea",),
            slots=0,
            devices=(),
            work_dir=tmp_path / "a2",
        )
        task = asyncio.create_task(run_agent(second, asyncio.Event()))
        await tracker.until(lambda: "a2" in tracker.states)
        tracker.fenced.add("a2")
        await tracker.notify()
        with pytest.raises(Fenced, match="a newer process connected"):
            await asyncio.wait_for(task, LIMIT_S)

    run_farm(story)


def test_device_that_another_agent_holds_is_bad_and_heals_when_it_is_free(tmp_path, run_farm):
    async def story(tracker, spec):
        await tracker.device_is_good()
        second = AgentSpec(
            tracker=spec.tracker,
            agent_id="a2",
            builds=(),
            slots=0,
            devices=parse_devices(["cpu@a1-cpu"], "a2"),
            work_dir=tmp_path / "a2",
        )
        stop = asyncio.Event()
        task = asyncio.create_task(run_agent(second, stop))
        bad = await tracker.until(
            lambda: (d := tracker.device("a2")) and d.health == device_pb2.HEALTH_BAD and d
        )
        assert bad.health_cause == f"locked by pid {os.getpid()}"
        stop.set()
        await task

    run_farm(story)


def test_agent_with_an_unknown_driver_is_refused(tmp_path):
    spec = AgentSpec(
        tracker="127.0.0.1:1",
        agent_id="a1",
        builds=(),
        slots=0,
        devices=parse_devices(["toaster"], "a1"),
        work_dir=tmp_path,
    )
    with pytest.raises(InvalidInput, match="known drivers are cpu, ea, opencl, qemu, wasm"):
        asyncio.run(run_agent(spec, asyncio.Event()))


def test_agent_that_stops_during_a_call_leaves_nothing(run_farm, hostile, tree):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        tensor = tensor_pb2.Tensor(dtype="int32", shape=[1], inline=bytes(4))
        (worker,) = tree.workers()
        before = processes.cpu_time_s(worker)
        calling = asyncio.get_running_loop().create_task(client.call("spin", tensor))
        await tracker.until(lambda: processes.cpu_time_s(worker) > before + 0.1)
        assert not calling.done()

    run_farm(story)  # which checks that no process is left
