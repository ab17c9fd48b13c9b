"""Measuring many candidates: what is asked for, and what comes back.

Owns: candidates, workloads and results as callers see them, and their messages. Does not own: the order in which things
happen (`farm.client.batch_measure`), or how a device measures.

Invariant: every candidate that was taken has exactly one result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.api.v1 import measure_pb2
from farm.artifact import Artifact
from farm.building import build
from farm.core.digest import digest_of
from farm.core.limits import MAX_INLINE_ARTIFACT_BYTES
from farm.errors import FarmError, InvalidInput
from farm.ir import Function
from farm.ir.widen import widened
from farm.measuring import Measurement, Status
from farm.measuring.values import MAX_NAME_BYTES, MAX_SEED, MAX_TOLERANCE
from farm.rpc import digest_to_proto
from farm.target import Target

if TYPE_CHECKING:
    from farm.client.transfer import Store

REFERENCE_NAME = "reference"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing to build and measure.

    Attributes
    ----------
    key
        The caller's name for it, unique in a batch; at most 128 bytes.
    what
        A function, which is built on the farm for `target`; or an artifact (or its file) that is built already.
    target
        Needed for a function that carries none.
    symbol
        Which function of an artifact; empty for one that has a single function.
    """

    key: str
    what: Function | Artifact | Path
    target: str | Target | None = None
    symbol: str = ""

    def __post_init__(self) -> None:
        try:
            size_bytes = len(self.key.encode())
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"candidate {ascii(self.key)[:40]}: no text; name it otherwise"
            ) from error
        if size_bytes > MAX_NAME_BYTES:
            raise InvalidInput(
                f"candidate {self.key[:40]}: longer than {MAX_NAME_BYTES} bytes; name it otherwise"
            )


@dataclass(frozen=True, slots=True)
class Workload:
    """What candidates are called with, and what has to come out.

    Attributes
    ----------
    reference
        A function that computes the same: it is built in float64 and run once on each device. Or an artifact whose only
        function (or `reference_symbol`) takes and gives the same arrays, perhaps of wider types. None: numbers are not
        checked, and `Measurement.checked` says so.
    seed
        Of inputs, which the device generates: random values, and values that show typical faults.
    inputs
        Instead, one array for each parameter that is an input or inout, in order; sent once.
    tolerance
        How far a float may be off, as a part of the largest magnitude in its row of the reference; 0: by its type
        (``1e-2`` for float16, ``5e-2`` for bfloat16, ``1e-4`` for float32, ``1e-9`` for float64). Integers must
        be equal.
    """

    reference: Function | Artifact | None = None
    seed: int = 0
    inputs: Sequence[Any] | None = None
    tolerance: float = 0.0
    reference_symbol: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise InvalidInput(f"workload: seed {self.seed}; use 0 to {MAX_SEED}")
        if not 0 <= self.tolerance <= MAX_TOLERANCE:  # not what is no number either
            raise InvalidInput(
                f"workload: tolerance {self.tolerance:g}; use 0 (by type) to {MAX_TOLERANCE:g}"
            )


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of a candidate.

    Attributes
    ----------
    status
        OK alone has a value. A failure of the farm itself is no status: it is raised, or the candidate is tried again.
    error
        Why, unless the status is OK.
    measurement
        With every raw sample, its noise grade and the host's fingerprint; None if it never reached a device.
    device_id
        Empty if it never reached one.
    seconds
        Where its time went: ``build`` (waiting for a builder included), ``device``.
    lost_devices
        Devices that went away while they measured it.
    """

    candidate: Candidate
    status: Status
    error: FarmError | None = None
    measurement: Measurement | None = None
    device_id: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    lost_devices: tuple[str, ...] = ()

    @property
    def value(self) -> float | None:
        """What a call takes, in the measurement's unit (``ns`` or ``cycles``); None unless the status is OK."""
        return self.measurement.value if self.measurement is not None else None


def artifact_ref(data: bytes, store: Store) -> measure_pb2.ArtifactRef:
    """Return the message for an artifact, which is stored if it is too large to travel inside."""
    if len(data) <= MAX_INLINE_ARTIFACT_BYTES:
        return measure_pb2.ArtifactRef(digest=digest_to_proto(digest_of(data)), inline=data)
    return measure_pb2.ArtifactRef(digest=digest_to_proto(store.put(data)))


def symbol_in(artifact: Artifact, symbol: str, name: str) -> str:
    """Return which function of an artifact is meant; raises InvalidInput as `subject_of`."""
    known = list(artifact.symbols)
    if not symbol and len(known) == 1:
        return known[0]
    if symbol not in known:
        wrong = f"no function {symbol}" if symbol else "several functions and none is named"
        raise InvalidInput(f"{name}: {wrong}; its artifact has {', '.join(known) or 'none'}")
    return symbol


def check_same_arrays(candidates: Sequence[Candidate], artifacts: Sequence[Artifact]) -> None:
    """Refuse candidates that take or give other arrays than the first: they compute something else.

    Raises
    ------
    InvalidInput
        Names two candidates and what each takes and gives; or as `subject_of`.
    """
    shown = []
    for candidate, artifact in zip(candidates, artifacts, strict=True):
        signature = artifact.symbols[symbol_in(artifact, candidate.symbol, candidate.key)]
        arrays = [
            f"{each.role} {each.dtype}[{', '.join(map(str, each.shape))}]"
            for each in signature.params
        ]
        shown.append(", ".join(arrays))
        if shown[-1] != shown[0]:
            raise InvalidInput(
                f"compare: {candidate.key} has other arrays ({shown[-1][:300]}) than {candidates[0].key} "
                f"({shown[0][:300]}), so that it computes something else; compare functions of the same arrays"
            )


def subject_of(artifact: Artifact, symbol: str, name: str, store: Store) -> measure_pb2.Subject:
    """Return the message for a function of an artifact.

    Raises
    ------
    InvalidInput
        The artifact has no such function, or several and none is named.
    """
    symbol = symbol_in(artifact, symbol, name)
    return measure_pb2.Subject(
        artifact=artifact_ref(artifact.to_bytes(), store), symbol=symbol, name=name
    )


def workload_message(
    workload: Workload, targets: Sequence[Target], store: Store
) -> measure_pb2.Workload:
    """Return the message for a workload.

    Parameters
    ----------
    targets
        CPUs whose devices have to run the reference.
    """
    message = measure_pb2.Workload(seed=workload.seed, tolerance=workload.tolerance)
    if workload.inputs is not None:
        message.inputs.extend(store.tensors(workload.inputs))
    if workload.reference is not None:
        artifact = workload.reference
        if isinstance(artifact, Function):
            artifact = reference_artifact(artifact, targets)
        symbol = workload.reference_symbol
        message.reference.CopyFrom(subject_of(artifact, symbol, REFERENCE_NAME, store))
    return message


def reference_artifact(function: Function, targets: Sequence[Target]) -> Artifact:
    """Build a function in float64, here and for each target, for checking what others compute."""
    wide = widened(function)
    return build({target: [wide] for target in targets or [Target.parse("llvm")]}, variants=True)
