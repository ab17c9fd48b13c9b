"""Whoever uses a farm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc

from farm.api.v1 import (
    admin_pb2_grpc,
    agent_pb2_grpc,
    blob_pb2,
    blob_pb2_grpc,
    build_pb2,
    build_pb2_grpc,
    device_pb2_grpc,
    ir_pb2,
    job_pb2,
    job_pb2_grpc,
    lease_pb2,
    lease_pb2_grpc,
    run_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tensor_pb2,
)
from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.core.digest import Digest
from farm.rpc import digest_to_proto, error_from_rpc
from farm.rpc.blobs import BlobStub, upload

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"
SIGNATURE = Signature((ParamSpec("a", "int32", (4,), "input", 4),))


@dataclass
class Client:
    """Stubs of every service, over one channel."""

    channel: grpc.aio.Channel
    blobs: Any = field(init=False)
    build: Any = field(init=False)
    devices: Any = field(init=False)
    leases: Any = field(init=False)
    sessions: Any = field(init=False)
    runs: Any = field(init=False)
    agents: Any = field(init=False)
    jobs: Any = field(init=False)
    admin: Any = field(init=False)

    def __post_init__(self) -> None:
        self.blobs = blob_pb2_grpc.BlobServiceStub(self.channel)
        self.build = build_pb2_grpc.BuildServiceStub(self.channel)
        self.devices = device_pb2_grpc.DeviceServiceStub(self.channel)
        self.leases = lease_pb2_grpc.LeaseServiceStub(self.channel)
        self.sessions = session_pb2_grpc.SessionServiceStub(self.channel)
        self.runs = run_pb2_grpc.RunServiceStub(self.channel)
        self.agents = agent_pb2_grpc.AgentServiceStub(self.channel)
        self.jobs = job_pb2_grpc.JobServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)

    async def put(self, data: bytes) -> Digest:
        """Store a blob."""
        return await upload(BlobStub(self.channel), data)

    async def get(self, digest: Digest) -> bytes:
        """Return a blob."""
        request = blob_pb2.ReadRequest(digest=digest_to_proto(digest))
        return b"".join([response.data async for response in self.blobs.Read(request)])

    async def submit(self, selector: str = "", *, values: bytes = b"\1\2", **options: Any) -> Any:
        """Submit a job that doubles some bytes."""
        artifact = digest_to_proto(await self.artifact("twice"))
        tensor = tensor_pb2.Tensor(dtype="uint8", shape=[len(values)], inline=values)
        run = job_pb2.RunSpec(selector=selector, artifact=artifact, symbol="twice", inputs=[tensor])
        run.limit_s = options.pop("limit_s", 5.0)
        request = job_pb2.SubmitRequest(run=run, **options)
        return await self.jobs.Submit(request, timeout=60)

    async def job(self, job_id: str) -> job_pb2.Job:
        """Return a job."""
        return await self.jobs.GetJob(job_pb2.GetJobRequest(job_id=job_id), timeout=60)

    async def wait(self, job_id: str) -> list[job_pb2.Job]:
        """Return everything that waiting for a job shows."""
        stream = self.jobs.Wait(job_pb2.WaitRequest(job_id=job_id), timeout=60)
        return [job async for job in stream]

    async def artifact(self, *symbols: str, target: str = X86) -> Digest:
        """Store an artifact with these functions for a target."""
        modules = [
            BuiltModule(
                kind="device",
                symbol=symbol,
                target=target,
                format="elf-object",
                format_version=1,
                requires=(),
                toolchain="test 1",
                signature=SIGNATURE,
                data=b"code",
            )
            for symbol in symbols
        ]
        return await self.put(assemble(X86, modules).to_bytes())

    async def function(self, name: str, *, private: bool = False) -> Digest:
        """Store the blob of a function of this name."""
        data = ir_pb2.Function(name=name, private=private).SerializeToString()
        return await self.put(data)

    async def items(self, *wanted: tuple[str, str]) -> list[build_pb2.BuildItem]:
        """Return items for (target, symbol) pairs."""
        return [
            build_pb2.BuildItem(
                kind=build_pb2.ITEM_KIND_DEVICE,
                target=target,
                symbol=symbol,
                function=digest_to_proto(await self.function(symbol)),
            )
            for target, symbol in wanted
        ]

    async def build_all(
        self, items: list[build_pb2.BuildItem], **options: Any
    ) -> tuple[build_pb2.BuildResult, list[build_pb2.ItemEvent]]:
        """Build to the end; return the result and the item events."""
        request = build_pb2.BuildRequest(
            request_key="test", target_host=X86, items=items, **options
        )
        events = [event async for event in self.build.Build(request, timeout=60)]
        assert [it.HasField("result") for it in events] == [False] * (len(events) - 1) + [True]
        return events[-1].result, [item for event in events for item in event.items]

    async def acquire(self, selector: str = "", **options: Any) -> lease_pb2.Lease:
        """Acquire a device."""
        request = lease_pb2.AcquireRequest(selector=selector, holder="test", **options)
        return (await self.leases.Acquire(request, timeout=60)).lease


def refusal(caught):
    return error_from_rpc(caught.value)


class Attached:
    """A client's stream."""

    def __init__(self, farm, lease, *, epoch=None, seq=1):
        self.call = farm.client.sessions.Attach()
        self.seq = seq - 1
        self.attach = session_pb2.AttachRequest(
            lease_id=lease.lease_id,
            epoch=lease.epoch if epoch is None else epoch,
            lease_token=lease.lease_token,
        )

    async def open(self):
        return await self.ask(attach=self.attach)

    async def ask(self, **request):
        await self.send(**request)
        return await self.reply()

    async def send(self, **request):
        self.seq += 1
        await self.call.write(session_pb2.SessionRequest(seq=self.seq, **request))

    async def reply(self):
        return await self.call.read()


def twice(*values: int, symbol: str = "twice", repeat: int = 0) -> session_pb2.CallRequest:
    tensor = tensor_pb2.Tensor(dtype="uint8", shape=[len(values)], inline=bytes(values))
    return session_pb2.CallRequest(module_id=7, symbol=symbol, inputs=[tensor], repeat=repeat)
