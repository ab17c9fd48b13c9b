"""Moving arrays and artifacts between a client and the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farm.api.v1 import blob_pb2_grpc, tensor_pb2
from farm.artifact import Artifact
from farm.core.digest import Digest
from farm.core.wire import Array, tensor_from_proto, tensor_to_proto
from farm.rpc import blobs


class Store:
    """The tracker's content-addressed store, as a client uses it."""

    def __init__(self, stub: blob_pb2_grpc.BlobServiceStub) -> None:
        self._stub = stub

    def put(self, data: bytes) -> Digest:
        """Store some bytes, if the store lacks them."""
        return blobs.upload(self._stub, data)

    def put_all(self, data: Sequence[bytes]) -> list[Digest]:
        """Store several blobs, if the store lacks them."""
        return blobs.upload_all(self._stub, data)

    def get(self, digest: Digest) -> bytes:
        """Return the bytes of a blob."""
        return blobs.download(self._stub, digest)

    def put_artifact(self, artifact: Artifact | Path | str) -> Digest:
        """Store an artifact, given itself or its file (which is checked first)."""
        loaded = artifact if isinstance(artifact, Artifact) else Artifact.load(Path(artifact))
        return self.put(loaded.to_bytes())

    def tensors(self, arrays: Sequence[Any]) -> list[tensor_pb2.Tensor]:
        """Return messages for arrays (anything that numpy takes); large ones are stored."""
        return [tensor_to_proto(np.asarray(array), self.put) for array in arrays]

    def arrays(self, tensors: Sequence[tensor_pb2.Tensor]) -> tuple[Array, ...]:
        """Return new arrays from messages."""
        return tuple(
            tensor_from_proto(tensor, self.get, f"output {index}").copy()
            for index, tensor in enumerate(tensors)
        )
