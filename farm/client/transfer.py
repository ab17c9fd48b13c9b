"""Moving arrays and artifacts between a client and the store.

Owns: what this client knows to be in the store, and transfers that keep the connection busy. Does not own: chunks and
their checks (`farm.rpc.chunks`), arrays as messages (`farm.core.wire`).

Invariant: bytes that this client stored, or found stored, are neither sent nor asked for again until the store says
that it lacks them; what comes back has the digest that was asked for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from farm.api.v1 import blob_pb2, tensor_pb2
from farm.artifact import Artifact
from farm.core.digest import Digest, digest_of
from farm.core.wire import Array, tensor_from_proto, tensor_to_proto
from farm.errors import NotFound
from farm.rpc import blobs, digest_to_proto, rpc_errors
from farm.rpc.chunks import BlobCheck, Content, content_of, write_messages

if TYPE_CHECKING:
    import grpc

T = TypeVar("T")

MAX_KNOWN = 100_000
UPLOADS_AT_ONCE = 4
READ_AHEAD_BYTES = 4 << 20
"""Blobs from this size on are hashed in a thread of their own while the next chunks arrive."""


class Store:
    """The tracker's content-addressed store, as a client uses it; threads may share it."""

    def __init__(self, stub: blobs.BlobStub) -> None:
        self._stub = stub
        self._known: OrderedDict[Digest, None] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, data: bytes) -> Digest:
        """Store some bytes, if the store lacks them."""
        return self.put_all([data])[0]

    def put_all(self, data: Sequence[Content]) -> list[Digest]:
        """Store several blobs, if the store lacks them; asks once for all that this client does not know."""
        content = [(digest_of(blob), blob) for blob in data]
        self._send(dict(content))
        return [digest for digest, _ in content]

    def get(self, digest: Digest) -> bytes:
        """Return the bytes of a blob."""
        return b"".join(self._chunks(digest))

    def take(self, digest: Digest, data: bytes) -> bytes:
        """Return the bytes of a blob of the store that came inside a message.

        Raises
        ------
        BlobCorrupt
            They are not what the digest names; ask again.
        """
        check = BlobCheck(digest)
        check.add(data)
        check.finish()
        self._remember([digest])
        return data

    def read(self, digest: Digest) -> memoryview:
        """Return the bytes of a blob in memory that is the caller's own, and writeable.

        Raises
        ------
        NotFound
            The store lacks it.
        BlobCorrupt
            What came is not what the digest names; read it again.
        """
        data = np.empty(
            digest.size_bytes, np.uint8
        ).data  # not cleared first, as a bytearray would be
        at = 0
        for chunk in self._chunks(digest):
            data[at : at + len(chunk)] = chunk
            at += len(chunk)
        return data

    def put_artifact(self, artifact: Artifact | Path | str) -> Digest:
        """Store an artifact, given itself or its file (which is checked first)."""
        return self.put(artifact_bytes(artifact))

    def tensors(self, arrays: Sequence[Any]) -> list[tensor_pb2.Tensor]:
        """Return messages for arrays (anything that numpy takes); large ones are stored."""
        pending: dict[Digest, Content] = {}

        def keep(data: Content) -> Digest:
            digest = digest_of(data)
            if not self.knows(digest):
                pending[digest] = data
            return digest

        messages = [tensor_to_proto(np.asarray(array), keep) for array in arrays]
        self._send(pending)
        return messages

    def arrays(self, tensors: Sequence[tensor_pb2.Tensor]) -> tuple[Array, ...]:
        """Return new arrays from messages."""
        found = (
            tensor_from_proto(tensor, self.read, f"output {index}")
            for index, tensor in enumerate(tensors)
        )
        return tuple(array if array.flags.writeable else array.copy() for array in found)

    def knows(self, digest: Digest) -> bool:
        """Tell whether this client stored the blob, or found it stored."""
        with self._lock:
            if digest not in self._known:
                return False
            self._known.move_to_end(digest)
            return True

    def forget(self) -> bool:
        """Take nothing for stored any more; tells whether anything was."""
        with self._lock:
            known = bool(self._known)
            self._known.clear()
            return known

    def sending(self, send: Callable[[], T]) -> T:
        """Do `send`, which stores blobs and then names them; once more if the store lost one of them.

        Parameters
        ----------
        send
            May be done twice: what ended with `NotFound` was not begun.
        """
        try:
            return send()
        except NotFound:
            if not self.forget():
                raise
            return send()

    def _chunks(self, digest: Digest) -> Iterator[Content]:
        """Yield a blob's chunks; raises BlobCorrupt at the end unless they are exactly what the digest names."""
        check = BlobCheck(digest)
        request = blob_pb2.ReadRequest(digest=digest_to_proto(digest))
        with contextlib.ExitStack() as stack:
            stack.enter_context(rpc_errors())
            update: Callable[[Content], object] = check.sha256.update
            if digest.size_bytes >= READ_AHEAD_BYTES:  # hashlib lets other threads run meanwhile
                hasher = stack.enter_context(ThreadPoolExecutor(1, "farm-hash"))
                update = lambda chunk: hasher.submit(check.sha256.update, chunk)  # noqa: E731
            responses = self._stub.read(request, timeout=blobs.TIMEOUT_S)
            stack.callback(
                responses.cancel
            )  # if it is left before its end; after it this does nothing
            for message in responses:
                chunk = content_of(message)
                check.count(chunk)
                update(chunk)
                yield chunk
        check.finish()
        self._remember([digest])

    def _send(self, content: Mapping[Digest, Content]) -> None:
        unknown = [digest for digest in content if not self.knows(digest)]
        if not unknown:
            return
        missing = blobs.find_missing(self._stub, unknown)
        running: deque[grpc.Future[Any]] = deque()
        try:
            with rpc_errors():
                for digest in missing:
                    if len(running) == UPLOADS_AT_ONCE:
                        running.popleft().result()
                    requests = write_messages(digest, content[digest])
                    running.append(self._stub.write.future(requests, timeout=blobs.TIMEOUT_S))
                while running:
                    running.popleft().result()
        finally:
            for upload in running:
                upload.cancel()
        self._remember(unknown)

    def _remember(self, digests: Iterable[Digest]) -> None:
        with self._lock:
            for digest in digests:
                self._known[digest] = None
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)


def artifact_bytes(artifact: Artifact | Path | str) -> bytes:
    """Return the bytes of an artifact, given itself or its file (which is checked)."""
    loaded = artifact if isinstance(artifact, Artifact) else Artifact.load(Path(artifact))
    return loaded.to_bytes()
