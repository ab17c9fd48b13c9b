"""A small server of the contract in this process, that can be away, break streams and lose blobs.

It keeps what it is sent and answers as the protos say; a test decides when a job goes on.
"""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest

from farm.api.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    blob_pb2,
    blob_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    error_pb2,
    job_pb2,
    job_pb2_grpc,
    lease_pb2,
    lease_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tensor_pb2,
)
from farm.artifact import Artifact, BuiltModule, ParamSpec, Signature, assemble
from farm.cli import main
from farm.client import Client
from farm.errors import Cancelled, FarmError, Fenced, InfrastructureError, NotAllowed, NotFound
from farm.rpc import digest_from_proto, server_options
from farm.rpc.chunks import BlobCheck, chunks_of
from farm.rpc.status import error_metadata, status_code

TARGET = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"
SIGNATURE = Signature(
    (ParamSpec("x", "int32", (4,), "input"), ParamSpec("y", "int32", (4,), "output"))
)
LIMIT_S = 120.0


def fail(context, error):
    """End a call with an error of the farm."""
    context.set_trailing_metadata(error_metadata(error))
    context.abort(status_code(error), error.message[:1000])


class Blobs(blob_pb2_grpc.BlobServiceServicer):
    """A store that counts what it is asked."""

    def __init__(self):
        self.blobs = {}
        self.asked = 0
        self.written = []
        self.damage = False

    def FindMissing(self, request, context):
        self.asked += 1
        return blob_pb2.FindMissingResponse(
            missing=[d for d in request.digests if d.sha256 not in self.blobs]
        )

    def Write(self, request_iterator, context):
        check, parts = None, []
        for request in request_iterator:
            check = check or BlobCheck(digest_from_proto(request.digest))
            check.add(request.data)
            parts.append(request.data)
        check.finish()
        self.blobs[check.digest.sha256] = b"".join(parts)
        self.written.append(check.digest.size_bytes)
        return blob_pb2.WriteResponse(stored_bytes=check.digest.size_bytes)

    def Read(self, request, context):
        data = self.blobs.get(request.digest.sha256)
        if data is None:
            fail(context, NotFound("blob x: not in the store; send it first"))
        if self.damage:
            data = bytes([data[0] ^ 1]) + data[1:]
        yield from (blob_pb2.ReadResponse(data=bytes(chunk)) for chunk in chunks_of(data))

    def need(self, digest, context):
        if digest.sha256 not in self.blobs:
            fail(context, NotFound(f"blob {digest.sha256}: not in the store; send it first"))


class Jobs(job_pb2_grpc.JobServiceServicer):
    """Jobs that go on when a test says so; a stream ends, broken, after `break_after` messages."""

    def __init__(self, blobs):
        self.blobs = blobs
        self.changed = threading.Condition()
        self.jobs = {}
        self.keys = {}
        self.chunks = {}
        self.submits = 0
        self.lose_answers = 0
        self.break_after = None
        self.streams = 0
        self.told = []
        """States that waiting clients were told, in order."""
        self.repeat_chunks = False
        self.skip_chunk = None
        self.whys = {}
        self.cancelled = []

    def change(self, job_id, **fields):
        """Give a job other fields, and tell whoever waits."""
        with self.changed:
            for name, value in fields.items():
                if isinstance(value, int | str | float):
                    setattr(self.jobs[job_id], name, value)
                elif isinstance(value, list):
                    getattr(self.jobs[job_id], name).extend(value)
                else:
                    getattr(self.jobs[job_id], name).CopyFrom(value)
            self.changed.notify_all()

    def print(self, job_id, data, *, truncated=False):
        """Let a kernel print a chunk."""
        with self.changed:
            chunks = self.chunks.setdefault(job_id, [])
            number = len(chunks) + 1
            chunks.append(
                job_pb2.LogChunk(number=number, data=data, truncated=truncated, attempt_id="a-1")
            )
            self.jobs[job_id].log_chunks = number
            self.changed.notify_all()

    def passed(self, job_id, values=(1, 2, 3, 4), samples_ns=(), device_id="cpu-1"):
        """End a job with a result."""
        data = np.asarray(values, "<i4")
        attempt = job_pb2.JobAttempt(
            attempt_id="a-1",
            device_id=device_id,
            agent_id="agent-1",
            epoch=7,
            state=job_pb2.ATTEMPT_STATE_DONE,
            started_at=1e9,
            ended_at=1e9 + 2,
        )
        tensor = tensor_pb2.Tensor(dtype="int32", shape=data.shape, inline=data.tobytes())
        self.change(
            job_id,
            attempts=[attempt],
            result=job_pb2.JobResult(outputs=[tensor], samples_ns=samples_ns, target=TARGET),
            verdict=job_pb2.VERDICT_PASS,
            outcome=job_pb2.OUTCOME_COMPLETED,
            ended_at=1e9 + 3,
            state=job_pb2.JOB_STATE_TERMINAL,
        )

    def failed(self, job_id, outcome, verdict=0, error=None):
        """End a job without a result."""
        fields = {"error": error_pb2.Error(code=error.code, message=error.message)} if error else {}
        self.change(
            job_id, outcome=outcome, verdict=verdict, state=job_pb2.JOB_STATE_TERMINAL, **fields
        )

    def Submit(self, request, context):
        self.submits += 1
        self.blobs.need(request.run.artifact, context)
        for tensor in request.run.inputs:
            if tensor.WhichOneof("content") == "blob":
                self.blobs.need(tensor.blob, context)
        with self.changed:
            existed = request.client_key in self.keys
            job_id = self.keys.setdefault(request.client_key, f"job-{len(self.keys) + 1}")
            if not existed:
                self.jobs[job_id] = job_pb2.Job(
                    job_id=job_id,
                    client_key=request.client_key,
                    account=request.account or "own",
                    priority=request.priority,
                    state=job_pb2.JOB_STATE_QUEUED,
                    run=request.run,
                    submitted_at=1e9,
                )
                self.request = request
        if self.lose_answers:
            self.lose_answers -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        return job_pb2.SubmitResponse(job_id=job_id, existed=existed)

    def _find(self, job_id, context):
        job = self.jobs.get(job_id)
        if job is None:
            fail(context, NotFound(f"job {job_id}: unknown; list them with `farm jobs`"))
        return job

    def GetJob(self, request, context):
        return self._find(request.job_id, context)

    def Wait(self, request, context):
        self._find(request.job_id, context)
        self.streams += 1
        last, sent = None, 0
        while context.is_active():
            with self.changed:
                job = self.jobs[request.job_id]
                if job == last:
                    self.changed.wait(0.05)
                    continue
                last = job_pb2.Job()
                last.CopyFrom(job)
            self.told.append(last.state)
            yield last
            sent += 1
            if last.state == job_pb2.JOB_STATE_TERMINAL:
                return
            if sent == self.break_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    def Logs(self, request, context):
        self.streams += 1
        upcoming, sent = max(1, request.from_chunk), 0
        if self.repeat_chunks:
            upcoming = max(1, upcoming - 1)
        while context.is_active():
            with self.changed:
                chunks = self.chunks.get(request.job_id, [])
                if len(chunks) < upcoming:
                    if self.jobs[request.job_id].state == job_pb2.JOB_STATE_TERMINAL:
                        return
                    self.changed.wait(0.05)
                    continue
                chunk = chunks[upcoming - 1]
            upcoming += 1
            if chunk.number == self.skip_chunk:
                continue
            yield chunk
            sent += 1
            if sent == self.break_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    def Cancel(self, request, context):
        job = self._find(request.job_id, context)
        self.cancelled.append((request.job_id, request.reason))
        if job.state != job_pb2.JOB_STATE_TERMINAL:
            self.failed(request.job_id, job_pb2.OUTCOME_CANCELLED)
        return self.jobs[request.job_id]

    def ListJobs(self, request, context):
        found = [
            job
            for job in reversed(self.jobs.values())
            if (request.include_terminal or job.state != job_pb2.JOB_STATE_TERMINAL)
            and request.account in ("", job.account)
        ]
        answer = job_pb2.ListJobsResponse(jobs=found[: request.limit])
        for job in answer.jobs:
            del job.run.inputs[:]
            job.ClearField("result")
        return answer

    def Why(self, request, context):
        self._find(request.job_id, context)
        return self.whys.get(
            request.job_id, job_pb2.WhyResponse(reason="it runs", estimate_s=-1, position=0)
        )


class Admin(admin_pb2_grpc.AdminServiceServicer):
    """One operator's view."""

    def __init__(self, devices):
        self.devices = devices
        self.requests = []
        self.leases = {}
        self.events = []
        self.changed = threading.Condition()
        self.break_after = None
        self.streams = 0

    def happen(self, kind, subject, text, actor=""):
        with self.changed:
            number = len(self.events) + 1
            self.events.append(
                admin_pb2.FarmEvent(
                    number=number, at=1e9, kind=kind, subject=subject, text=text, actor=actor
                )
            )
            self.changed.notify_all()

    def SetAdmin(self, request, context):
        self.requests.append(request)
        wanted = request.selector.removeprefix("device_id=")
        found = [d for d in self.devices if d.description.device_id == wanted]
        if not found:
            fail(context, NotFound(f"selector {request.selector}: no device matches; see devices"))
        for device in found:
            device.admin = request.admin
        return admin_pb2.SetAdminResponse(devices=found)

    def ListLeases(self, request, context):
        return admin_pb2.ListLeasesResponse(leases=self.leases.values())

    def Events(self, request, context):
        self.streams += 1
        at, sent = request.after, 0
        while context.is_active():
            with self.changed:
                if at >= len(self.events):
                    if not request.follow:
                        return
                    self.changed.wait(0.05)
                    continue
                event = self.events[at]
            at += 1
            yield event
            sent += 1
            if sent == self.break_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")


class Leases(lease_pb2_grpc.LeaseServiceServicer):
    """One device to take."""

    def __init__(self, admin):
        self.admin = admin
        self.released = []
        self.strict = False

    def Acquire(self, request, context):
        device = self.admin.devices[0]
        device.epoch += 1
        lease = admin_pb2.HeldLease(
            lease_id=f"lease-{device.epoch}",
            device_id=device.description.device_id,
            epoch=device.epoch,
            holder=request.holder,
            account="own",
            remaining_s=request.ttl_s,
        )
        self.admin.leases[lease.lease_id] = lease
        return lease_pb2.AcquireResponse(
            lease=lease_pb2.Lease(
                lease_id=lease.lease_id,
                epoch=lease.epoch,
                device=device,
                remaining_s=request.ttl_s,
                lease_token=f"secret-{lease.epoch}",
            )
        )

    def Renew(self, request, context):
        lease = self.admin.leases.get(request.lease_id)
        if lease is None or lease.epoch != request.epoch:
            fail(context, Fenced(f"lease {request.lease_id}: it ended; acquire again"))
        self._check(request, context)
        lease.remaining_s = request.ttl_s
        return lease_pb2.RenewResponse(remaining_s=request.ttl_s)

    def _check(self, request, context):
        if self.strict and request.lease_token != f"secret-{request.epoch}":
            fail(context, NotAllowed(f"lease {request.lease_id}: its token is wrong; show it"))

    def Release(self, request, context):
        self._check(request, context)
        self.admin.leases.pop(request.lease_id, None)
        self.released.append((request.lease_id, request.epoch))
        return lease_pb2.ReleaseResponse()


class Sessions(session_pb2_grpc.SessionServiceServicer):
    """A device whose function ``double`` doubles, and whose ``crash`` does not."""

    def __init__(self, blobs):
        self.blobs = blobs
        self.batches = []
        self.packs = []
        self.failed = set()
        self.made = 0
        self.slow = threading.Event()
        self.slow.set()
        self.calling = 0
        self.attached = []

    def Attach(self, request_iterator, context):
        for request in request_iterator:
            reply = session_pb2.SessionReply(seq=request.seq)
            try:
                getattr(self, request.WhichOneof("request"))(request, reply)
            except FarmError as error:
                reply.error.code, reply.error.message = error.code, error.message
                self.failed.add(request.seq)
            yield reply

    def attach(self, request, reply):
        attach = request.attach
        self.attached.append((attach.lease_id, attach.epoch, attach.lease_token))
        reply.attached.device_id = "cpu-1"

    def load(self, request, reply):
        data = request.load.inline or self.blobs.blobs.get(request.load.artifact.sha256)
        if data is None:
            raise NotFound("blob x: not in the store; send it first")
        for symbol, signature in Artifact.from_bytes(data).symbols.items():
            function = reply.loaded.functions.add(symbol=symbol, target=TARGET)
            function.signature = signature.to_json()
        reply.loaded.module_id = 1

    def call(self, request, reply):
        reply.called.CopyFrom(self._call(request.call))

    def batch(self, request, reply):
        self.batches.append(request.batch)
        reply.batch.SetInParent()
        for call in request.batch.calls:
            try:
                reply.batch.replies.append(self._call(call))
            except FarmError as error:
                reply.batch.error.code, reply.batch.error.message = error.code, error.message
                return

    def packed(self, request, reply):
        packed = request.packed
        self.packs.append(packed)
        if packed.follows and request.seq - packed.follows in self.failed:
            raise Cancelled("packed: the calls before these failed; none of these was made")
        reply.packed.SetInParent()
        size = len(packed.inputs) // len(packed.order)
        for number, index in enumerate(packed.order):
            try:
                content = packed.inputs[number * size : (number + 1) * size]
                tensor = tensor_pb2.Tensor(inline=content)
                symbol = packed.functions[index].symbol
                call = session_pb2.CallRequest(symbol=symbol, inputs=[tensor])
                reply.packed.outputs += self._call(call).outputs[0].inline
                reply.packed.done += 1
            except FarmError as error:
                reply.packed.error.code, reply.packed.error.message = error.code, error.message
                self.failed.add(request.seq)
                return

    def _call(self, call):
        self.calling += 1
        self.slow.wait(LIMIT_S)
        (tensor,) = call.inputs
        if tensor.WhichOneof("content") == "blob":
            data = self.blobs.blobs.get(tensor.blob.sha256)
            if data is None:
                raise NotFound("blob x: not in the store; send it first")
        else:
            data = tensor.inline
        if call.symbol == "crash":
            from farm.errors import KernelCrashed

            raise KernelCrashed("kernel crash: SIGSEGV; mend it")
        self.made += 1
        doubled = (np.frombuffer(data, "<i4") * 2).tobytes()
        out = tensor_pb2.Tensor(dtype="int32", shape=[4], inline=doubled[:16])
        return session_pb2.CallReply(outputs=[out])


class Devices(device_pb2_grpc.DeviceServiceServicer):
    def __init__(self, devices):
        self.devices = devices

    def ListDevices(self, request, context):
        return device_pb2.ListDevicesResponse(devices=self.devices)

    def ListAgents(self, request, context):
        return device_pb2.ListAgentsResponse()


@dataclass
class SmallTracker:
    """The services, and whether they can be reached."""

    blobs: Blobs = field(default_factory=Blobs)
    port: int = 0

    def __post_init__(self):
        device = device_pb2.Device(
            description=device_pb2.DeviceDescription(
                device_id="cpu-1",
                targets=[TARGET],
                labels={"kind": "cpu"},
                timing_class=device_pb2.TIMING_CLASS_NATIVE,
            ),
            agent_id="agent-1",
            admin=device_pb2.ADMIN_ENABLED,
            observed=device_pb2.OBSERVED_ONLINE,
            health=device_pb2.HEALTH_GOOD,
            use=device_pb2.USE_IDLE,
        )
        self.jobs = Jobs(self.blobs)
        self.admin = Admin([device])
        self.leases = Leases(self.admin)
        self.sessions = Sessions(self.blobs)
        self.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        """Serve, at the same address as before."""
        self.pool = ThreadPoolExecutor(16)
        self.server = grpc.server(self.pool, options=server_options())
        device_pb2_grpc.add_DeviceServiceServicer_to_server(
            Devices(self.admin.devices), self.server
        )
        blob_pb2_grpc.add_BlobServiceServicer_to_server(self.blobs, self.server)
        job_pb2_grpc.add_JobServiceServicer_to_server(self.jobs, self.server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self.admin, self.server)
        lease_pb2_grpc.add_LeaseServiceServicer_to_server(self.leases, self.server)
        session_pb2_grpc.add_SessionServiceServicer_to_server(self.sessions, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        self.server.start()

    def stop(self):
        """Be away: streams break."""
        self.server.stop(0).wait(10)
        self.pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output, which must be one JSON document."""
        return json.loads(self.out)


@pytest.fixture
def tracker():
    small = SmallTracker()
    yield small
    small.stop()


@pytest.fixture
def client(tracker):
    with Client(tracker.address) as made:
        made.away_s = 60.0
        yield made


@pytest.fixture
def artifact():
    """Two functions for a CPU; nobody runs their code."""
    modules = [
        BuiltModule(
            kind="device",
            symbol=symbol,
            target=TARGET,
            format="elf-object",
            format_version=1,
            requires=("arch:x86_64",),
            toolchain="none 1",
            signature=SIGNATURE,
            data=symbol.encode(),
        )
        for symbol in ("double", "crash")
    ]
    return assemble(TARGET, modules)


@pytest.fixture
def large_artifact():
    """A function whose arrays are too large to travel inside a message."""
    params = (ParamSpec("x", "int32", (1 << 17,), "input"), ParamSpec("y", "int32", (4,), "output"))
    module = BuiltModule(
        kind="device",
        symbol="large",
        target=TARGET,
        format="elf-object",
        format_version=1,
        requires=("arch:x86_64",),
        toolchain="none 1",
        signature=Signature(params),
        data=b"large",
    )
    return assemble(TARGET, [module])


@pytest.fixture
def x():
    return np.arange(4, dtype=np.int32)


@pytest.fixture
def until():
    """Wait until a condition holds: ``until(lambda: ...)``."""

    def wait(condition):
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    return wait


@pytest.fixture
def later(until):
    """Do something in a thread as soon as a condition holds: ``later(lambda: ..., function, ...)``."""
    threads = []

    def start(condition, function, *arguments, **options):
        def wait():
            until(condition)
            function(*arguments, **options)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(2 * LIMIT_S)


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path, tracker):
    """Run a command line in an empty folder, with the small server as its tracker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FARM_DEBUG", raising=False)
    monkeypatch.setenv("FARM_TRACKER", tracker.address)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FARM_LEASE_TOKEN", raising=False)

    def run(*arguments):
        code = main.run([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def saved(artifact, tmp_path):
    path = tmp_path / "kernels.farm"
    artifact.save(path)
    return path


@pytest.fixture
def stopping():
    """What a tracker that stops answers."""
    return InfrastructureError("tracker: it is being stopped; try again when it is back")
