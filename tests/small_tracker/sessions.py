"""Its end of sessions."""

from __future__ import annotations

import threading

import numpy as np

from farm.api.v1 import session_pb2, session_pb2_grpc, tensor_pb2
from farm.artifact import Artifact
from farm.errors import Cancelled, FarmError, KernelCrashed, NotFound
from small_tracker.jobs import TARGET

LIMIT_S = 120.0


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
            raise KernelCrashed("kernel crash: SIGSEGV; mend it")
        self.made += 1
        doubled = (np.frombuffer(data, "<i4") * 2).tobytes()
        out = tensor_pb2.Tensor(dtype="int32", shape=[4], inline=doubled[:16])
        return session_pb2.CallReply(outputs=[out])
