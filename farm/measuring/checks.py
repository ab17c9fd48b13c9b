"""Checks of requests to measure and compare, at both ends.

Owns: which requests are well-formed, and the blobs that they name. Does not own: options (`values`), or what becomes of
a request.

Invariant: a request that passes is within the limits of the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farm.api.v1 import measure_pb2
from farm.core.digest import Digest, digest_of
from farm.core.limits import MAX_INLINE_ARTIFACT_BYTES
from farm.core.wire import digest_from_proto
from farm.errors import InvalidInput
from farm.measuring.values import (
    DEFAULT_ROUNDS,
    MAX_COMPARED,
    MAX_NAME_BYTES,
    MAX_ROUNDS,
    MAX_SUBJECTS,
    MAX_THRESHOLD,
    MAX_TOLERANCE,
    MIN_ROUNDS,
    MIN_THRESHOLD,
)

MAX_SYMBOL = 256


def subject_blobs(subject: measure_pb2.Subject) -> list[Digest]:
    """Return the blob that holds a candidate's artifact, unless that came with the request."""
    return [] if subject.artifact.inline else [digest_from_proto(subject.artifact.digest)]


def check_subject(subject: measure_pb2.Subject) -> None:
    """Raise InvalidInput unless a candidate is named, and its artifact is what it is said to be."""
    if not 0 < len(subject.symbol) <= MAX_SYMBOL or len(subject.name.encode()) > MAX_NAME_BYTES:
        raise InvalidInput(
            f"candidate {subject.name[:80]!r}: bad symbol or name ({subject.symbol[:80]!r}); use at most {MAX_SYMBOL} "
            f"letters and {MAX_NAME_BYTES} bytes"
        )
    ref = subject.artifact
    digest = digest_from_proto(ref.digest)
    if ref.inline and (
        len(ref.inline) > MAX_INLINE_ARTIFACT_BYTES or digest_of(ref.inline) != digest
    ):
        raise InvalidInput(
            f"candidate {subject.name[:80]!r}: inline artifact of {len(ref.inline)} bytes is not {digest} of at most "
            f"{MAX_INLINE_ARTIFACT_BYTES} bytes; store it and send its digest alone"
        )


def check_compare(request: measure_pb2.CompareRequest) -> None:
    """Raise InvalidInput unless a comparison's numbers are in range."""
    count = len(request.subjects)
    if not 2 <= count <= MAX_SUBJECTS:
        raise InvalidInput(f"compare: {count} candidates; send 2 to {MAX_SUBJECTS}")
    for subject in request.subjects:
        check_subject(subject)
    if request.threshold and not MIN_THRESHOLD <= request.threshold <= MAX_THRESHOLD:
        raise InvalidInput(
            f"compare: threshold {request.threshold:g}; use {MIN_THRESHOLD:g} to {MAX_THRESHOLD:g}"
        )
    check_rounds(count, request.min_rounds, request.max_rounds)
    check_workload(request.workload)


def check_rounds(candidates: int, least: int, most: int) -> None:
    """Raise InvalidInput unless a comparison may have so many rounds; 0 stands for the default."""
    for rounds in filter(None, (least, most)):
        if not MIN_ROUNDS <= rounds <= MAX_ROUNDS:
            raise InvalidInput(f"compare: {rounds} rounds; use {MIN_ROUNDS} to {MAX_ROUNDS}")
    most = max(least or DEFAULT_ROUNDS[0], most or DEFAULT_ROUNDS[1])
    if candidates * most > MAX_COMPARED:
        raise InvalidInput(
            f"compare: {most} rounds of {candidates} candidates are {candidates * most} samples, of which one result "
            f"holds {MAX_COMPARED}; use at most {MAX_COMPARED // candidates} rounds, or compare fewer at once"
        )


def check_workload(workload: measure_pb2.Workload) -> None:
    """Raise InvalidInput unless what is right is said sensibly."""
    if not 0 <= workload.tolerance <= MAX_TOLERANCE:
        raise InvalidInput(
            f"workload: tolerance {workload.tolerance:g}; use 0 (by type) to {MAX_TOLERANCE:g}"
        )


def blobs_named(
    subjects: Sequence[measure_pb2.Subject], workload: measure_pb2.Workload
) -> Iterator[Digest]:
    """Yield every blob that a request names."""
    for subject in subjects:
        yield from subject_blobs(subject)
    if workload.HasField("reference"):
        yield from subject_blobs(workload.reference)
    for tensor in workload.inputs:
        if tensor.WhichOneof("content") == "blob":
            yield digest_from_proto(tensor.blob)
