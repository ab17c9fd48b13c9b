"""What the reference of a workload gives, in a process that no candidate can reach.

Owns: running it once for all candidates of one signature, and keeping its outputs and what it was given. Does not own:
comparing with them (`farm_agents.worker.numerics`).

Invariant: what is kept comes from the reference alone, and is run again if the cache has lost it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from farm.api.v1 import measure_pb2, session_pb2
from farm.artifact import Artifact
from farm.core.digest import Digest
from farm.core.wire import digest_from_proto
from farm.errors import FarmError, InfrastructureError, InvalidInput
from farm_agents.cache import BlobCache
from farm_agents.requests import blobs_of
from farm_agents.session_worker import SessionWorker, raise_error
from farm_agents.worker.blobs import read_blob

REFERENCE_LIMIT_S = 120.0
MAX_REFERENCES = 16
"""Whose outputs are known at a time."""

Expected = Sequence[measure_pb2.ExpectedCase]


class Unusable(Exception):
    """A candidate's artifact cannot be used; `error` says why."""

    def __init__(self, error: FarmError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(slots=True)
class Reference:
    """The references of one session."""

    cache: BlobCache
    _known: dict[bytes, Expected] = field(default_factory=dict)

    async def expected(
        self, worker: SessionWorker, subject: measure_pb2.Subject, workload: measure_pb2.Workload
    ) -> Expected:
        """Return what the reference gives for each case of inputs of a candidate's signature.

        Parameters
        ----------
        worker
            A fresh one, used if the reference has to run.

        Raises
        ------
        Unusable
            The candidate's artifact is none, or lacks the function.
        InvalidInput
            The reference does not run.
        InfrastructureError
            The farm failed.
        """
        key = hashlib.sha256(
            workload.SerializeToString(deterministic=True) + self._signature(subject)
        ).digest()
        known = self._known.get(key)
        if known is not None and all(map(self.cache.has, _blobs(known))):
            return known
        try:
            cases = await self._run(worker, subject, workload)
        except InfrastructureError:
            raise
        except FarmError as error:
            raise InvalidInput(
                f"reference {workload.reference.symbol[:80]}: does not run on this device ({error.message}); correct it"
            ) from error
        while len(self._known) >= MAX_REFERENCES:
            del self._known[next(iter(self._known))]
        self._known[key] = cases
        return cases

    def forget(self, sha256: str) -> None:
        """Drop an array that turned out to be damaged, by its digest: the references that it is of run again."""
        for cases in self._known.values():
            for digest in _blobs(cases):
                if digest.sha256 == sha256:
                    self.cache.forget(digest)

    async def _run(
        self, worker: SessionWorker, subject: measure_pb2.Subject, workload: measure_pb2.Workload
    ) -> Expected:
        expect = measure_pb2.MeasureRequest(subject=subject, workload=workload)
        expect.options.limit_s = REFERENCE_LIMIT_S
        child = await worker.child()
        message = session_pb2.SessionRequest(seq=1, expect=expect)
        reply = await worker.exchange(child, message, REFERENCE_LIMIT_S)
        raise_error(reply)
        cases = tuple(reply.expected.cases)
        for digest in dict.fromkeys(_blobs(cases)):
            with child.result(digest) as path:
                await self.cache.keep(path, digest)
        return cases

    def _signature(self, subject: measure_pb2.Subject) -> bytes:
        ref = subject.artifact
        try:
            data = ref.inline or read_blob(self.cache.root, digest_from_proto(ref.digest))
            found = Artifact.from_bytes(data).symbols.get(subject.symbol)
        except InfrastructureError:
            raise
        except FarmError as error:
            raise Unusable(error) from error
        if found is None:
            raise Unusable(
                InvalidInput(f"{subject.symbol[:80]}: not in its artifact; name a function that is")
            )
        return found.to_json()


def _blobs(cases: Expected) -> list[Digest]:
    return blobs_of(tensor for case in cases for tensor in (*case.outputs, *case.inputs))
