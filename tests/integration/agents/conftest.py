"""A small tracker that speaks the agents' protocol over real gRPC, and kernels that behave badly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from pathlib import Path
from types import SimpleNamespace

import grpc
import llvmlite.binding as llvm
import pytest
from farm_agents.agent import run_agent
from farm_agents.sandbox.mode import Mode
from farm_agents.spec import AgentSpec, parse_devices
from farm_agents.worker import processes

from farm.api.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    blob_pb2,
    blob_pb2_grpc,
    build_pb2,
    device_pb2,
    job_pb2,
    session_pb2,
)
from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.core.digest import digest_of
from farm.core.wire import digest_from_proto, digest_to_proto
from farm.errors import Fenced, NotFound
from farm.rpc import abort_with, server_options
from farm.rpc.chunks import BlobCheck, chunks_of
from farm.target import Target

LIMIT_S = 120.0

TENSOR = "%T = type { ptr, i32, i32, i32, i8, i8, i16, ptr, ptr, i64 }\n"


class Blobs(blob_pb2_grpc.BlobServiceServicer):
    """A store in memory."""

    def __init__(self):
        self.data = {}
        self.reads = []

    def put(self, data):
        digest = digest_of(data)
        self.data[digest] = data
        return digest

    async def FindMissing(self, request, context):
        missing = [d for d in request.digests if digest_from_proto(d) not in self.data]
        return blob_pb2.FindMissingResponse(missing=missing)

    async def Write(self, requests, context):
        check, parts = None, []
        async for request in requests:
            check = check or BlobCheck(digest_from_proto(request.digest))
            check.add(request.data)
            parts.append(request.data)
        check.finish()
        self.put(b"".join(parts))
        return blob_pb2.WriteResponse()

    async def Read(self, request, context):
        digest = digest_from_proto(request.digest)
        self.reads.append(digest)
        if digest not in self.data:
            await abort_with(context, NotFound(f"blob {digest}: absent; upload it"))
        for chunk in chunks_of(self.data[digest]):
            yield blob_pb2.ReadResponse(data=bytes(chunk))


class Tracker(agent_pb2_grpc.AgentServiceServicer):
    """The tracker's end of the agents' protocol: tests write what is desired and see what agents say."""

    def __init__(self):
        self.blobs = Blobs()
        self.states = {}
        self.connections = 0
        self.reports = 0
        self.uses = set()
        self.builds = []
        self.leases = []
        self.runs = []
        self.heartbeat_s = 0.2
        self.revision = 0
        self.fenced = set()
        self.taken = set()
        self.yielding = 0
        self.changed = asyncio.Condition()
        self.requests = {}
        self.replies = {}
        self.opened = []
        self.server = None
        self.port = 0

    async def start(self):
        self.server = grpc.aio.server(options=server_options())
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self.server)
        blob_pb2_grpc.add_BlobServiceServicer_to_server(self.blobs, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()

    async def stop(self):
        await self.server.stop(None)

    async def want(self, *, builds=None, leases=None, runs=None):
        """Change the desired state."""
        self.runs = self.runs if runs is None else runs
        self.builds = self.builds if builds is None else builds
        self.leases = self.leases if leases is None else leases
        await self.notify()

    async def notify(self):
        async with self.changed:
            self.revision += 1
            self.changed.notify_all()

    async def Synchronise(self, states, context):
        self.connections += 1
        seen = set()
        reading = asyncio.create_task(self._read(states, seen))
        try:
            sent = None
            async with self.changed:
                await self.changed.wait_for(lambda: seen)
            while True:
                if self.fenced & seen:
                    await abort_with(context, Fenced("agent: a newer process connected; end"))
                if self.taken & seen:
                    await abort_with(context, Fenced("agent: another process speaks for it"))
                if sent != self.revision:
                    sent = self.revision
                    yield agent_pb2.DesiredState(
                        revision=sent + 1,
                        heartbeat_s=self.heartbeat_s,
                        builds=self.builds,
                        leases=self.leases,
                        runs=self.runs,
                    )
                async with self.changed:
                    if sent == self.revision:
                        await self.changed.wait()
        finally:
            reading.cancel()

    async def _read(self, states, seen):
        async for state in states:
            seen.add(state.agent_id)
            self.yielding += state.yields
            self.states[state.agent_id] = state
            self.reports += 1
            self.uses |= {(it.use, it.epoch) for it in state.devices}
            async with self.changed:
                self.changed.notify_all()

    async def Serve(self, frames, context):
        opening = (await anext(aiter(frames))).open
        self.opened.append((opening.lease_id, opening.epoch))
        requests = self.requests.setdefault(opening.lease_id, asyncio.Queue())
        replies = self.replies.setdefault(opening.lease_id, asyncio.Queue())

        async def read():
            async for frame in frames:
                replies.put_nowait(frame.reply)

        reading = asyncio.create_task(read())
        try:
            while True:
                request = await requests.get()
                if request is None:
                    await abort_with(context, Fenced("lease: ended; acquire again"))
                yield request
        finally:
            reading.cancel()

    async def until(self, condition, limit_s=LIMIT_S):
        """Wait until ``condition()`` holds."""
        deadline = time.monotonic() + limit_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {limit_s} s; states: {self.states}")
            await asyncio.sleep(0.01)
        return value

    async def hears(self, count):
        """Wait for so many more reports: what an agent does about something new, it tells at once."""
        before = self.reports
        await self.until(lambda: self.reports >= before + count)

    def device(self, agent="a1", index=0):
        state = self.states.get(agent)
        return state.devices[index] if state else None

    def attempt(self, attempt_id, agent="a1"):
        state = self.states.get(agent)
        found = [a for a in state.attempts if a.attempt_id == attempt_id] if state else []
        return found[0] if found else None

    def run(self, attempt_id, agent="a1"):
        """The run attempt as the agent reports it, None if it does not."""
        state = self.states.get(agent)
        found = [a for a in state.runs if a.attempt_id == attempt_id] if state else []
        return found[0] if found else None

    async def run_ends(self, attempt_id, agent="a1"):
        """Wait until the agent reports an outcome."""
        return await self.until(
            lambda: (
                (it := self.run(attempt_id, agent)) and it.WhichOneof("outcome") != "running" and it
            )
        )

    async def start_run(self, artifact, symbol, *inputs, epoch=1, agent="a1", **options):
        """Want a run with a lease of its own; return its attempt's id."""
        device = await self.device_is_good(agent)
        digest = digest_to_proto(self.blobs.put(artifact.to_bytes()))
        run = job_pb2.RunSpec(artifact=digest, symbol=symbol, inputs=inputs, **options)
        task = agent_pb2.RunTask(
            attempt_id=f"job.{epoch}",
            job_id="job",
            lease_id=f"job.{epoch}.lease",
            device_id=device.description.device_id,
            epoch=epoch,
            run=run,
        )
        grant = agent_pb2.LeaseGrant(
            lease_id=task.lease_id, device_id=task.device_id, epoch=epoch, remaining_s=120
        )
        await self.want(leases=[grant], runs=[task])
        return task.attempt_id

    async def device_is(self, use, epoch=None, agent="a1"):
        """Wait until the agent reports this use of its device."""
        number = device_pb2.Use.Value(f"USE_{use}")

        def holds():
            device = self.device(agent)
            return device and device.use == number and epoch in (None, device.epoch) and device

        return await self.until(holds)

    async def device_is_good(self, agent="a1"):
        return await self.until(
            lambda: (d := self.device(agent)) and d.health == device_pb2.HEALTH_GOOD and d
        )

    async def lease(self, epoch, seconds=60.0, agent="a1"):
        """Grant a lease on the agent's device and wait until it is served."""
        device = await self.device_is_good(agent)
        lease_id = f"lease-{epoch}"
        grant = agent_pb2.LeaseGrant(
            lease_id=lease_id,
            device_id=device.description.device_id,
            epoch=epoch,
            remaining_s=seconds,
        )
        await self.want(leases=[grant])
        await self.device_is("LEASED", epoch, agent)
        return self.client(lease_id)

    def client(self, lease_id):
        """The other end of a lease's session."""
        return Client(self, lease_id)


class Client:
    """The other end of one session."""

    def __init__(self, tracker, lease_id):
        self.tracker = tracker
        self.lease_id = lease_id
        self.seq = self.answered = 0
        self.queue = lambda kind: kind.setdefault(lease_id, asyncio.Queue())

    async def send(self, **request):
        self.seq += 1
        message = session_pb2.SessionRequest(seq=self.seq, **request)
        self.queue(self.tracker.requests).put_nowait(message)

    async def receive(self):
        async with asyncio.timeout(LIMIT_S):
            reply = await self.queue(self.tracker.replies).get()
        self.answered += 1
        assert reply.seq == self.answered
        return reply

    async def load(self, artifact):
        digest = self.tracker.blobs.put(artifact.to_bytes())
        await self.send(load=session_pb2.LoadRequest(artifact=digest_to_proto(digest)))
        return await self.receive()

    async def call(self, symbol, *inputs, module_id=1, **options):
        await self.send(
            call=session_pb2.CallRequest(
                module_id=module_id, symbol=symbol, inputs=inputs, **options
            )
        )
        return await self.receive()


def zygotes():
    """The zygotes below this process, the one that tests the sandbox apart."""
    children = processes.children_of(os.getpid())
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in children}
    return [pid for pid in children if {b"session", b"build"} & set(words[pid])]


def workers(top=None):
    """Every process below one (this one) that works for somebody, or that one of these has started."""
    return called(top, "farm-session", "farm-build")


def spares():
    """Every process below this one that waits in a sandbox to work for somebody."""
    return called(None, "farm-spare")


def called(top, *names):
    """Every process below one (this one) that has one of these names."""
    found = []
    for pid in processes.descendants_of(top or os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() in names:
                found.append(pid)
    return found


@pytest.fixture
def tree():
    """The processes of the agent that runs in this one: zygotes, workers, spares."""
    return SimpleNamespace(zygotes=zygotes, workers=workers, spares=spares)


@pytest.fixture
def make_tracker():
    """The class of the small tracker."""
    return Tracker


@pytest.fixture
def run_farm(tmp_path, monkeypatch):
    """Run a story against one agent: ``run_farm(story, devices=..., builds=..., slots=...)``."""
    monkeypatch.setenv("KERNEL_FARM_RUNTIME_DIR", str(tmp_path / "runtime"))

    def run(story, devices=("cpu",), builds=(), slots=1, sandbox="auto", **options):
        async def main():
            tracker = Tracker()
            await tracker.start()
            stop = asyncio.Event()
            spec = AgentSpec(
                tracker=f"127.0.0.1:{tracker.port}",
                agent_id="a1",
                builds=tuple(builds),
                slots=slots,
                devices=parse_devices(devices, "a1"),
                work_dir=tmp_path / "a1",
                sandbox=Mode(sandbox),
                **options,
            )
            agent = asyncio.create_task(run_agent(spec, stop))
            telling = asyncio.create_task(story(tracker, spec))
            try:
                await asyncio.wait({agent, telling}, return_when=asyncio.FIRST_COMPLETED)
                if not telling.done():
                    agent.result()  # raises what ended it
                    raise AssertionError("the agent ended before the story")
                telling.result()
            finally:
                telling.cancel()
                stop.set()
                with contextlib.suppress(Fenced):
                    await agent
                await tracker.stop()
            assert processes.children_of(os.getpid()) == []

        asyncio.run(main())

    return run


def data_of(index):
    return f"""
  %p{index} = getelementptr ptr, ptr %args, i64 {index}
  %t{index} = load ptr, ptr %p{index}
  %d{index} = load ptr, ptr %t{index}"""


def function(name, count, body):
    return f"""{TENSOR}
@name_{name} = private constant [{len(name) + 1} x i8] c"{name}\\00"
@entry_{name} = constant {{ ptr, ptr }} {{ ptr @name_{name}, ptr @{name} }}, section "farm_functions"
@llvm.used = appending global [1 x ptr] [ptr @entry_{name}], section "llvm.metadata"
declare void @llvm.trap()
@text = private constant [6 x i8] c"noise\\0A"
define i32 @{name}(ptr %args, i32 %n) {{
start:{"".join(map(data_of, range(count)))}
{body}
}}
"""


def syscall(result, number, *arguments):
    """IR of a system call of x86-64 Linux."""
    registers = ("rdi", "rsi", "rdx", "r10", "r8", "r9")[: len(arguments)]
    constraints = ",".join(["={rax}", "0", *(f"{{{r}}}" for r in registers)])
    values = ", ".join(f"i64 {value}" for value in (number, *arguments))
    types = f'"{constraints},~{{rcx}},~{{r11}},~{{memory}}"'
    return f'  %{result} = call i64 asm sideeffect "syscall", {types}({values})\n'


MAP_POPULATED = 0x8022
"""Private, of no file, with its pages there at once."""

INCREMENT = """
  %value = load i32, ptr %d0
  %more = add i32 %value, 1
  store i32 %more, ptr %d1
  ret i32 0"""

BODIES = {
    "increment": INCREMENT,
    "segfault": "  store volatile i32 1, ptr null\n  ret i32 0",
    "trap": "  call void @llvm.trap()\n  unreachable",
    "spin": "  br label %again\nagain:\n  store volatile i32 1, ptr %d1\n  br label %again",
    "leave": syscall("x", 231, 3) + "  unreachable",
    # A grandchild in a session of its own that outlives the call and sleeps for ever.
    "orphan": syscall("a", 57)
    + "  %child = icmp eq i64 %a, 0\n  br i1 %child, label %first, label %done\nfirst:\n"
    + syscall("b", 112)
    + syscall("c", 57)
    + "  %grandchild = icmp eq i64 %c, 0\n"
    + "  br i1 %grandchild, label %sleep, label %end\nend:\n"
    + syscall("d", 231, 0)
    + "  unreachable\nsleep:\n"
    + syscall("e", 34)
    + "  br label %sleep\ndone:"
    + INCREMENT,
    # Takes 64 MiB after 64 MiB until something ends it.
    "eat_memory": "  br label %again\nagain:\n"
    + syscall("at", 9, 0, 1 << 26, 3, MAP_POPULATED, -1, 0)
    + "  br label %again",
    "chatter": "  %address = ptrtoint ptr @text to i64\n"
    + syscall("a", 1, 1, "%address", 6)
    + syscall("b", 1, 2, "%address", 6)
    + INCREMENT,
    # Prints x lines; a write that fails is no reason to stop.
    "flood": "  %address = ptrtoint ptr @text to i64\n  %lines = load i32, ptr %d0\n"
    + "  br label %again\nagain:\n  %left = phi i32 [%lines, %start], [%less, %again]\n"
    + syscall("a", 1, 1, "%address", 6)
    + "  %less = sub i32 %left, 1\n  %more_lines = icmp sgt i32 %less, 0\n"
    + "  br i1 %more_lines, label %again, label %done\ndone:"
    + INCREMENT,
    # Prints, and then never ends.
    "announce": "  %address = ptrtoint ptr @text to i64\n"
    + syscall("a", 1, 1, "%address", 6)
    + "  br label %again\nagain:\n  store volatile i32 1, ptr %d1\n  br label %again",
    "forge": "  %address = ptrtoint ptr @text to i64\n"
    + syscall("a", 1, 3, "%address", 6)
    + "  br label %again\nagain:\n  store volatile i32 1, ptr %d1\n  br label %again",
}


@pytest.fixture(scope="session")
def hostile():
    """An artifact of hand-written kernels ``name(x: int32[1]) -> y: int32[1]`` for this machine."""
    if platform.machine() != "x86_64":
        pytest.skip("needs an x86-64 host: the kernels make its system calls")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    params = (ParamSpec("x", "int32", (1,), "input"), ParamSpec("y", "int32", (1,), "output"))
    target = Target.parse("llvm -mtriple=x86_64-linux-gnu")
    machine = llvm.Target.from_triple("x86_64-linux-gnu").create_target_machine(reloc="pic", opt=1)
    modules = []
    for name, body in BODIES.items():
        module = llvm.parse_assembly(function(name, 2, body))
        module.triple = "x86_64-linux-gnu"
        module.verify()
        modules.append(
            BuiltModule(
                kind="device",
                symbol=name,
                target=str(target),
                format="elf-object",
                format_version=1,
                requires=target.requires,
                toolchain="test",
                signature=Signature(params),
                data=machine.emit_object(module),
            )
        )
    return assemble(target, modules)


@pytest.fixture(scope="session")
def build_task():
    """Make a BuildTask: ``build_task(tracker, attempt_id, function, target)``."""

    def make(tracker, attempt_id, function_bytes, target, limit_s=60.0, symbol="f"):
        digest = tracker.blobs.put(function_bytes)
        item = build_pb2.BuildItem(
            kind=build_pb2.ITEM_KIND_DEVICE,
            target=target,
            symbol=symbol,
            function=digest_to_proto(digest),
        )
        return agent_pb2.BuildTask(attempt_id=attempt_id, item=item, limit_s=limit_s)

    return make
