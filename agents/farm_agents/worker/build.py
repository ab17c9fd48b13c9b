"""A build's child: compiles one function for one target, and may die of it.

Owns: one BuildTask in, one BuildAttempt out, on its channel. Does not own: compiling (`farm.codegen`) or limits on
wall time (the agent, `farm_agents.builder`).

Invariant: an object that is not in the attempt is a whole file in the out folder before the attempt says so.
"""

from __future__ import annotations

import gc
import importlib
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from farm.api.v1 import agent_pb2, build_pb2
from farm.codegen import compile_function
from farm.core.digest import digest_of
from farm.core.limits import MAX_INLINE_OBJECT_BYTES
from farm.core.wire import digest_from_proto, digest_to_proto, error_to_proto
from farm.errors import FarmError, InfrastructureError
from farm.target import Target
from farm_agents.worker import layout, processes
from farm_agents.worker.blobs import keep_blob, read_blob
from farm_agents.worker.frames import write_frame
from farm_agents.worker.session import CPU_GRACE_S, MAX_FILE_BYTES, redirect_output, requests
from farm_agents.worker.small import small_function

if TYPE_CHECKING:
    from farm.artifact.module import BuiltModule, Kind

KINDS: dict[int, Kind] = {
    build_pb2.ITEM_KIND_DEVICE: "device",
    build_pb2.ITEM_KIND_HOST: "host",
}


def serve(channel: socket.socket, config: Mapping[str, object]) -> None:
    """Compile what comes on `channel`, one task after the other, until the agent ends it.

    Parameters
    ----------
    config
        ``cache``, ``out`` and ``log`` (paths), ``address_space_bytes`` (0: no limit).
    """
    redirect_output(Path(str(config["log"])))
    size = config.get("address_space_bytes")
    processes.limit_resources(size if isinstance(size, int) else 0, MAX_FILE_BYTES)
    cache, out = Path(str(config["cache"])), Path(str(config["out"]))
    for frame in requests(channel, "farm-build"):
        task = agent_pb2.BuildTask.FromString(frame)
        processes.limit_cpu(task.limit_s + CPU_GRACE_S)
        write_frame(channel, compile_task(task, cache, out).SerializeToString())


def compile_task(task: agent_pb2.BuildTask, cache: Path, out: Path) -> agent_pb2.BuildAttempt:
    """Return the attempt that a task makes; what does not compile is an Error in it."""
    attempt = agent_pb2.BuildAttempt(attempt_id=task.attempt_id)
    start = time.perf_counter()
    try:
        module = _compile(task.item, cache)
        data = bytes(module.data)
        is_small = len(data) <= MAX_INLINE_OBJECT_BYTES
        attempt.module.CopyFrom(
            build_pb2.Module(
                object=digest_to_proto(digest_of(data) if is_small else keep_blob(out, data)),
                data=data if is_small else b"",
                format=module.format,
                format_version=module.format_version,
                requires=module.requires,
                toolchain=module.toolchain,
                signature=module.signature.to_json(),
            )
        )
    except FarmError as error:
        attempt.error.CopyFrom(error_to_proto(error))
    except OSError as error:  # such as a full disk: not the function's fault
        what = f"build {task.item.symbol}: {error}; look at the agent's disk and try again"
        attempt.error.CopyFrom(error_to_proto(InfrastructureError(what)))
    attempt.seconds = time.perf_counter() - start
    return attempt


def warm_up(families: str) -> None:
    """Compile a small function for each family, so that a child's first compilation costs no start-up; see `layout`.

    Parameters
    ----------
    families
        Comma-separated, such as ``llvm/aarch64,ea``.
    """
    importlib.import_module("farm.codegen.accelerator.compile")
    for family in filter(None, families.split(",")):
        try:
            plain, here = Target.of_family(family), Target.parse("llvm")
            if plain.is_plug_in:  # this process runs nobody's code
                continue
            for target in (plain, here) if here.family == family else (plain,):
                compile_function(small_function(), "device", target)
        except FarmError as error:  # its builds will say so too; the other families still work
            print(f"builder: {family} does not compile: {error.message}", file=sys.stderr)
    gc.collect()
    layout.move_code("libllvmlite")
    layout.clear_heap()


def _compile(item: build_pb2.BuildItem, cache: Path) -> BuiltModule:
    kind = KINDS.get(item.kind)
    if kind is None:
        raise InfrastructureError(
            f"build {item.symbol}: unknown kind ({item.kind}); update the agent"
        )
    function = digest_from_proto(item.function)
    data = item.code or read_blob(cache, function)
    if item.code and digest_of(data) != function:
        raise InfrastructureError(
            f"build {item.symbol}: {len(data)} bytes came that are not its function; try again"
        )
    return compile_function(data, kind, Target.parse(item.target, foreign=True))
