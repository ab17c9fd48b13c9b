"""A small tracker in this process that speaks the agents' protocol over real gRPC."""

from __future__ import annotations

import asyncio
import time

import grpc

from farm.api.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    blob_pb2,
    blob_pb2_grpc,
    device_pb2,
    job_pb2,
    session_pb2,
)
from farm.core.digest import digest_of
from farm.core.wire import digest_from_proto, digest_to_proto
from farm.errors import Fenced, NotFound
from farm.rpc import abort_with, server_options
from farm.rpc.chunks import BlobCheck, chunks_of

LIMIT_S = 120.0


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
            lease_id=task.lease_id, device_id=task.device_id, epoch=epoch, remaining_s=600
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
