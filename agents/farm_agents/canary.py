"""Canary kernels: small functions with a known answer, which show that a device computes rightly.

Owns: which of the prebuilt kernels a device runs, running them in a worker of their own, judging what they give.
Does not own: when that happens and what follows (`farm_agents.health`), building them (`agents/generate_canaries.py`).

Invariant: inputs are fresh each time and the answer is computed here, so that no device passes by remembering; after it
no process of the canary is left.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from farm.api.v1 import session_pb2, tensor_pb2
from farm.artifact import Artifact, choose
from farm.core.digest import digest_of
from farm.core.tasks import finish
from farm.core.wire import digest_to_proto
from farm.errors import FarmError, HostMismatch, KernelCrashed, NoVariant, TimeLimit
from farm.target import Target
from farm_agents.cache import BlobCache
from farm_agents.device import LocalDevice
from farm_agents.session_worker import LOAD_LIMIT_S, SessionWorker, raise_error

FOLDER = Path(__file__).parent / "canaries"
CALL_LIMIT_S = 10.0
SHAPES = ((8, 32), (32, 8))
LARGEST_FLOAT = 8
"""Products of whole numbers up to here, summed, are exact in float32 in whatever order."""

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Canary:
    """What one device runs: an artifact, and its functions that have a slice for the device."""

    artifact: bytes
    symbols: tuple[str, ...]


def canary_for(targets: Sequence[str], provides: Sequence[str]) -> Canary | None:
    """Return what a device runs, on its accelerator if it has one; None: nothing was built for it. Blocking."""
    found: list[tuple[bool, Canary]] = []
    for data, artifact in _prebuilt():
        try:
            chosen = choose(artifact, targets, provides)
        except (NoVariant, HostMismatch):
            continue
        if chosen:
            accelerated = any(
                Target.parse(it.section.target, foreign=True).is_accelerator
                for it in chosen.values()
            )
            found.append((accelerated, Canary(data, tuple(sorted(chosen)))))
    best = max(found, key=lambda it: (it[0], len(it[1].symbols)), default=None)
    return best[1] if best else None


async def run_canary(device: LocalDevice, cache: BlobCache, folder: Path) -> str:
    """Run a device's canary; return what is wrong with it, empty if nothing is.

    Parameters
    ----------
    folder
        Scratch of its own; it is removed.
    """
    about = device.description
    canary = await asyncio.to_thread(canary_for, about.targets, about.provides)
    if canary is None:
        return ""
    worker = SessionWorker(device, cache, folder, folder / "output.log")
    try:
        await finish(worker.child())  # one that is being started is not left half way
        return await _judge(worker, canary)
    except TimeLimit:
        return "canary: it hangs (a kernel that takes milliseconds ran past its limit)"
    except KernelCrashed as error:
        return f"canary: it crashes ({error.details.get('signal') or error.message})"
    except FarmError as error:
        return f"canary: {error.message}"
    except OSError as error:  # such as a full disk
        return f"canary: it cannot run ({error}); look at the agent's disk"
    finally:
        await finish(_end(worker, folder))  # whoever needs the device may ask for that twice


async def _end(worker: SessionWorker, folder: Path) -> None:
    await worker.kill()
    worker.close()
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _judge(worker: SessionWorker, canary: Canary) -> str:
    digest = digest_to_proto(digest_of(canary.artifact))
    load = session_pb2.LoadRequest(artifact=digest, inline=canary.artifact)
    reply = await worker.ask(session_pb2.SessionRequest(seq=1, load=load), (), LOAD_LIMIT_S)
    raise_error(reply)
    source = np.random.default_rng()
    for seq, symbol in enumerate(canary.symbols, 2):
        inputs, expected = _question(symbol, source)
        call = session_pb2.CallRequest(
            module_id=reply.loaded.module_id,
            symbol=symbol,
            inputs=[_tensor(it) for it in inputs],
            limit_s=CALL_LIMIT_S,
        )
        request = session_pb2.SessionRequest(seq=seq, call=call)
        answer = await worker.ask(request, (), CALL_LIMIT_S)
        raise_error(answer)
        cause = _difference(symbol, expected, answer.called)
        if cause:
            return cause
    return ""


def _question(symbol: str, source: np.random.Generator) -> tuple[tuple[Array, Array], Array]:
    """Return fresh inputs of a kernel, and what it has to give."""
    if symbol.endswith("integers"):
        a, b = (source.integers(-128, 128, shape, np.int8) for shape in SHAPES)
        return (a, b), a.astype(np.int32) @ b.astype(np.int32)
    x, y = (
        source.integers(-LARGEST_FLOAT, LARGEST_FLOAT + 1, shape).astype(np.float32)
        for shape in SHAPES
    )
    return (x, y), x @ y


def _difference(symbol: str, expected: Array, reply: session_pb2.CallReply) -> str:
    if len(reply.outputs) != 1 or len(reply.outputs[0].inline) != expected.nbytes:
        return f"canary: {symbol} gave something else than one array of {expected.nbytes} bytes"
    given = np.frombuffer(reply.outputs[0].inline, expected.dtype).reshape(expected.shape)
    wrong = np.argwhere(given != expected)
    if not len(wrong):
        return ""
    first = tuple(map(int, wrong[0]))
    return (
        f"canary: {symbol} gave wrong numbers ({len(wrong)} of {expected.size}; at {first} "
        f"{given[first]} instead of {expected[first]})"
    )


def _tensor(array: Array) -> tensor_pb2.Tensor:
    return tensor_pb2.Tensor(dtype=array.dtype.name, shape=array.shape, inline=array.tobytes())


@functools.cache
def _prebuilt() -> tuple[tuple[bytes, Artifact], ...]:
    """Return every prebuilt artifact; of one that this version cannot read, nothing."""
    found = []
    for path in sorted(FOLDER.glob("*.farm")):
        data = path.read_bytes()
        found.append((data, Artifact.from_bytes(data)))
    return tuple(found)
