"""A session's child: loads artifacts and calls their functions on one device, and may die of it.

Owns: answering the requests of a session on its channel. Does not own: limits on wall
time and what follows a crash (the agent, `farm_agents.session_worker`), or loading itself (`farm.runtime`).

Invariant: one reply for each request, in order; what a kernel prints goes to the log, never into the channel.
"""

from __future__ import annotations

import functools
import importlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from farm.api.v1 import device_pb2, measure_pb2, session_pb2
from farm.artifact.artifact import Artifact, assemble
from farm.codegen import compile_function
from farm.core.limits import DEFAULT_LIMIT_S, MAX_FIRST_OUTPUT_BYTES
from farm.core.wire import digest_from_proto, error_to_proto, tensor_from_proto, tensor_to_proto
from farm.errors import FarmError, InfrastructureError, InvalidInput, NotFound
from farm.measuring import Options, Status
from farm.measuring.wire import (
    comparison_to_proto,
    measurement_to_proto,
    options_from_proto,
    options_to_proto,
)
from farm.target import Target
from farm_agents.worker import processes
from farm_agents.worker.blobs import Blobs, keep_blob, read_blob
from farm_agents.worker.compare import interleave
from farm_agents.worker.expect import expect
from farm_agents.worker.frames import read_frame, write_frame
from farm_agents.worker.loaders import LoaderSpec
from farm_agents.worker.measure import measure, use_numbers
from farm_agents.worker.packed import check_sizes, make_calls
from farm_agents.worker.replies import MAX_BYTES, Replies
from farm_agents.worker.small import SMALL_EXTENT, small_function

if TYPE_CHECKING:
    from farm.runtime import LoadedModule, Loader
    from farm.runtime.interface import ShortCall

CPU_GRACE_S = 10.0
MAX_FILE_BYTES = 4 << 30
MAX_FRAMED_BYTES = MAX_FIRST_OUTPUT_BYTES
"""Outputs of packed calls that are sent with the reply; more are left to the agent to read."""
_ENTRY = b"\x0a"
"""Begins each of `replies` in a BatchReply; a length follows."""


@dataclass(slots=True)
class Session:
    """What a session's child holds: the loader and what it has loaded, by module id from 1.

    Attributes
    ----------
    tell
        Tells the agent something before the reply.
    threads
        Of the device.
    """

    loader: Loader
    cache: Path
    out: Path
    allow_cpu: Callable[[float], None]
    replies: Replies
    modules: list[LoadedModule] = field(default_factory=list)
    tell: Callable[[session_pb2.SessionReply], None] = lambda reply: None
    threads: int = 1
    _shorts: dict[tuple[int, str], ShortCall] = field(default_factory=dict)

    def answer(self, request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
        """Return the reply to one request; what goes wrong in it is an Error in the reply."""
        reply = session_pb2.SessionReply(seq=request.seq)
        try:
            match request.WhichOneof("request"):
                case "load":
                    reply.loaded.CopyFrom(self._load(request.load))
                case "call":
                    call = request.call
                    self.allow_cpu(_limit_s(call) + CPU_GRACE_S)
                    reply.called.CopyFrom(self._call(call))
                case "packed":
                    self._packed(request.packed, reply.packed)
                case "batch":
                    reply.batch.CopyFrom(self._batch(request.batch))
                case "measure":
                    reply.measured.CopyFrom(self._measure(request))
                case "compare":
                    reply.compared.CopyFrom(self._compare(request))
                case "expect":
                    reply.expected.CopyFrom(self._expect(request.expect))
                case other:
                    raise InfrastructureError(f"worker: unexpected request ({other}); try again")
        except FarmError as error:
            reply.error.CopyFrom(error_to_proto(error))
        except OSError as error:  # such as a full disk: not the kernel's fault
            what = f"worker: {error}; look at the agent's disk and try again"
            reply.error.CopyFrom(error_to_proto(InfrastructureError(what)))
        return reply

    def _load(self, request: session_pb2.LoadRequest) -> session_pb2.LoadReply:
        data = request.inline or read_blob(self.cache, digest_from_proto(request.artifact))
        module = self.loader.load(Artifact.from_bytes(data))
        self.modules.append(module)
        reply = session_pb2.LoadReply(
            module_id=len(self.modules),
            functions=[
                session_pb2.LoadedFunction(
                    symbol=symbol,
                    target=str(function.target),
                    signature=function.signature.to_json(),
                )
                for symbol, function in sorted(module.functions.items())
            ],
        )
        if request.HasField("calls"):
            self._packed(request.calls, reply.called, reply.module_id)
        return reply

    def _batch(self, request: session_pb2.BatchRequest) -> session_pb2.BatchReply:
        """Make calls until one fails; their replies are in `replies`, the failure is in what is returned."""
        self.allow_cpu(sum(map(_limit_s, request.calls)) + CPU_GRACE_S)
        done = session_pb2.BatchReply()
        replies = self.replies
        replies.clear()
        try:
            for call in request.calls:
                reply = self._call(call).SerializeToString()
                if not replies.add(_ENTRY + _varint(len(reply)) + reply):
                    raise InvalidInput(
                        f"call {call.symbol}: the replies of its batch are too large (over "
                        f"{MAX_BYTES} bytes); send fewer calls in one batch"
                    )
        except FarmError as error:
            done.error.CopyFrom(error_to_proto(error))
        return done

    def _packed(
        self, request: session_pb2.PackedRequest, reply: session_pb2.PackedReply, unnamed: int = 0
    ) -> None:
        """Make packed calls until one fails; outputs that are many are only in `replies`.

        Parameters
        ----------
        unnamed
            The module of functions that name none.
        """
        self.allow_cpu((request.limit_s or DEFAULT_LIMIT_S) + CPU_GRACE_S)
        replies = self.replies
        replies.clear()
        order = list(request.order)
        try:
            calls = [self._short(function, unnamed) for function in request.functions]
            make_calls(calls, order, request.inputs, replies)
        except FarmError as error:
            reply.error.CopyFrom(error_to_proto(error))
        reply.done = replies.made[0]
        sizes = [function.output_bytes for function in request.functions]
        size_bytes = sum(sizes[index] for index in order[: reply.done])
        if size_bytes <= MAX_FRAMED_BYTES:
            reply.outputs = bytes(replies.outputs[:size_bytes])

    def _short(self, function: session_pb2.PackedFunction, unnamed: int) -> ShortCall:
        module_id = function.module_id or unnamed
        key = (module_id, function.symbol)
        call = self._shorts.get(key)
        if call is None:
            module = self._module(module_id)
            call = self._shorts[key] = module.short_call(function.symbol)
        check_sizes(function, call)
        return call

    def _call(self, request: session_pb2.CallRequest) -> session_pb2.CallReply:
        read = functools.partial(read_blob, self.cache)
        inputs = [
            tensor_from_proto(tensor, read, f"input {position}")
            for position, tensor in enumerate(request.inputs)
        ]
        module = self._module(request.module_id)
        result = module.call(request.symbol, inputs, repeat=request.repeat)
        return session_pb2.CallReply(
            outputs=[
                tensor_to_proto(np.asarray(array), functools.partial(keep_blob, self.out))
                for array in result.outputs
            ],
            samples_ns=[int(sample) for sample in result.samples_ns],
        )

    def _measure(self, request: session_pb2.SessionRequest) -> measure_pb2.Measurement:
        self.allow_cpu(options_from_proto(request.measure.options).limit_s + CPU_GRACE_S)
        blobs, begin = Blobs(self.cache), self._begin(request.seq)
        return measurement_to_proto(
            measure(request.measure, self.loader, blobs, self.threads, begin)
        )

    def _compare(self, request: session_pb2.SessionRequest) -> measure_pb2.Comparison:
        self.allow_cpu(options_from_proto(request.compare.options).limit_s + CPU_GRACE_S)
        blobs, begin = Blobs(self.cache), self._begin(request.seq)
        return comparison_to_proto(
            interleave(request.compare, self.loader, blobs, self.threads, begin)
        )

    def _expect(self, request: measure_pb2.MeasureRequest) -> measure_pb2.ExpectedReply:
        self.allow_cpu(options_from_proto(request.options).limit_s + CPU_GRACE_S)
        keep = functools.partial(keep_blob, self.out)
        cases = expect(request, self.loader, Blobs(self.cache), keep)
        return measure_pb2.ExpectedReply(cases=cases)

    def _begin(self, seq: int) -> Callable[[], None]:
        """Return what tells the agent that time is taken from now on."""
        return lambda: self.tell(session_pb2.SessionReply(seq=seq, timing=True))

    def _module(self, module_id: int) -> LoadedModule:
        if not 1 <= module_id <= len(self.modules):
            raise NotFound(
                f"module {module_id}: not loaded in this session "
                f"({len(self.modules)} are); use the id of a LoadReply"
            )
        return self.modules[module_id - 1]


def serve(channel: socket.socket, config: Mapping[str, object]) -> None:
    """Serve one session on `channel` until the agent ends it.

    Parameters
    ----------
    config
        ``loader`` (`LoaderSpec.to_config`), ``cache``, ``out`` and ``log`` (paths), ``address_space_bytes``
        (0: no limit).
    """
    redirect_output(Path(_text(config, "log")))
    # A worker that is killed cannot remove its temporary files; with the scratch folder they go.
    os.environ["TMPDIR"] = tempfile.tempdir = _text(config, "out")
    size = config.get("address_space_bytes")
    processes.limit_resources(size if isinstance(size, int) else 0, MAX_FILE_BYTES)
    spec = LoaderSpec.from_config(config.get("loader"))
    # Other processes of an emulator need more than the limit of this one.
    allow_cpu = processes.limit_cpu if spec.kind == "qemu" else processes.limit_own_cpu
    out = Path(_text(config, "out"))
    cache = Path(_text(config, "cache"))
    tell = functools.partial(_write, channel)
    session = Session(
        spec.open(), cache, out, allow_cpu, Replies(out), tell=tell, threads=spec.threads
    )
    for frame in requests(channel, "farm-session"):
        request = session_pb2.SessionRequest.FromString(frame)
        _write(channel, session.answer(request))


def _write(channel: socket.socket, reply: session_pb2.SessionReply) -> None:
    write_frame(channel, reply.SerializeToString())


def requests(channel: socket.socket, name: str) -> Iterator[bytes]:
    """Yield what comes until the agent ends the channel; from the first on the process is called `name`."""
    while (frame := read_frame(channel)) is not None:
        processes.set_name(name)
        yield frame


def _limit_s(call: session_pb2.CallRequest) -> float:
    return call.limit_s or DEFAULT_LIMIT_S


@functools.cache
def _varint(value: int) -> bytes:
    """Return a length as messages have it: seven bits a byte, the lowest first."""
    if value < 1 << 7:
        return bytes((value,))
    return bytes((value & 0x7F | 0x80,)) + _varint(value >> 7)


def redirect_output(log: Path) -> None:
    """Point descriptors 0, 1 and 2 away from the harness: nothing to read, prints into `log`."""
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(null)
    os.close(file)


def warm_up(loader: str) -> None:
    """Use once what each child will use, so that its first use in a child costs nothing.

    Parameters
    ----------
    loader
        ``native``, ``ea`` (native with the accelerator), ``opencl``, ``qemu`` or ``wasm``.
    """
    message = session_pb2.SessionReply(seq=1, called=session_pb2.CallReply(samples_ns=[1]))
    session_pb2.SessionReply.FromString(message.SerializeToString())
    use_numbers()
    if loader in ("qemu", "wasm"):
        # Everything else of an emulator is other processes; an engine would start threads before a fork.
        importlib.import_module(f"farm.runtime.{loader}")
        return
    if loader == "opencl":
        importlib.import_module("farm.runtime.opencl")  # opens no platform yet
    from farm.runtime.local import local_capabilities
    from farm.runtime.native import native_loader

    here = local_capabilities()
    inputs = [np.arange(SMALL_EXTENT, dtype=np.int32)]
    native = native_loader(here.targets, here.provides)
    artifact = _small_artifact(loader)
    module = native.load(artifact)
    result = module.call("small", inputs, repeat=1)
    module.close()
    _measure_small(native, artifact)
    if not np.array_equal(result.outputs[0], inputs[0] + 1):
        raise InfrastructureError(
            f"worker {loader}: a small function gave a wrong result; reinstall"
        )


def _measure_small(loader: Loader, artifact: Artifact) -> None:
    """Measure the small function as candidates are measured; what it takes means nothing."""
    options = Options(samples=3, sample_s=0.0001, warm_up_s=0.0, budget_s=0.001)
    subject = measure_pb2.Subject(symbol="small", name="small")
    subject.artifact.inline = artifact.to_bytes()
    request = measure_pb2.MeasureRequest(subject=subject, options=options_to_proto(options))
    request.context.timing_class = device_pb2.TIMING_CLASS_NATIVE
    message = session_pb2.SessionRequest(seq=1, measure=request).SerializeToString()
    request = session_pb2.SessionRequest.FromString(message).measure
    found = measure(request, loader, Blobs(Path()), 1, lambda: None)
    measurement_to_proto(found).SerializeToString()
    if found.status is not Status.OK:
        raise InfrastructureError(f"worker: a small function is not measured ({found.error})")


def _small_artifact(loader: str) -> Artifact:
    host = Target.parse("llvm")
    function = small_function()
    if loader != "ea":
        return assemble(host, [compile_function(function, "device", host)])
    device = compile_function(function, "device", Target.parse("ea"))
    return assemble(host, [device, compile_function(function, "host", host)])


def _text(config: Mapping[str, object], name: str) -> str:
    value = config.get(name)
    if not isinstance(value, str) or not value:
        raise InfrastructureError(f"worker: no {name} in its configuration ({value!r}); try again")
    return value
