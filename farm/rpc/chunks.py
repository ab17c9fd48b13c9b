"""Chunks of blobs: cutting, their messages, and checking what came.

Owns: the messages of BlobService that carry content, as bytes. Does not own: calls (`farm.rpc.blobs`), or files.

Invariant: what `write_message` and `read_message` give is what protobuf gives for the same fields; what `written` and
`content_of` take is whatever protobuf takes.

Notes
-----
Protobuf copies content twice on each side. A message whose only field is content is that content behind a few bytes,
so that it can be made and looked at with no more than one copy; every other message goes through protobuf.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from farm.api.v1 import blob_pb2
from farm.core.digest import Digest
from farm.core.limits import CHUNK_BYTES
from farm.core.wire import digest_to_proto
from farm.errors import BlobCorrupt, InvalidInput

Content = bytes | memoryview

_WRITE_TAG, _READ_TAG = 0x12, 0x0A
"""Before `data` of a WriteRequest and of a ReadResponse; its length follows."""


class BlobCheck:
    """Refuses whatever does not belong to one blob."""

    def __init__(self, digest: Digest) -> None:
        self.digest = digest
        self.sha256 = hashlib.sha256()
        self.size_bytes = 0

    def count(self, chunk: Content) -> None:
        """Take note of the next chunk; whoever counts has it hashed with `sha256`, in the same order.

        Raises
        ------
        BlobCorrupt
            It is longer than 1 MiB, or more bytes came than the blob has.
        """
        size_bytes = self.size_bytes + len(chunk)
        if len(chunk) > CHUNK_BYTES or size_bytes > self.digest.size_bytes:
            raise BlobCorrupt(
                f"blob {self.digest}: a chunk of {len(chunk)} bytes is too much after {self.size_bytes}; "
                "transfer it again"
            )
        self.size_bytes = size_bytes

    def add(self, chunk: Content) -> None:
        """Count a chunk and hash it; raises BlobCorrupt."""
        self.count(chunk)
        self.sha256.update(chunk)

    def finish(self) -> None:
        """Raise BlobCorrupt unless exactly the blob came."""
        has = Digest(self.sha256.hexdigest(), self.size_bytes)
        if has != self.digest:
            raise BlobCorrupt(
                f"blob {self.digest}: bytes do not match the digest (they are {has}); transfer it again"
            )


def chunks_of(source: Content | Path) -> Iterator[Content]:
    """Yield the chunks of some bytes, without a copy, or of a file."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
        return
    view = memoryview(source).cast("B")
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def write_messages(digest: Digest, source: Content | Path) -> Iterator[bytes]:
    """Yield the WriteRequests of a blob: its digest, then its chunks."""
    yield blob_pb2.WriteRequest(digest=digest_to_proto(digest)).SerializeToString()
    for chunk in chunks_of(source):
        yield _message(_WRITE_TAG, chunk)


def written(message: bytes) -> tuple[blob_pb2.WriteRequest | None, Content]:
    """Return the fields of a WriteRequest, None if there is only content, and the content.

    Raises
    ------
    InvalidInput
        It is none.
    """
    content = _content(_WRITE_TAG, message)
    if content is not None:
        return None, content
    try:
        request = blob_pb2.WriteRequest.FromString(message)
    except DecodeError as error:
        raise _malformed(error) from error
    return request, request.data


def read_message(chunk: Content) -> bytes:
    """Return the ReadResponse of a chunk."""
    return _message(_READ_TAG, chunk)


def content_of(message: bytes) -> Content:
    """Return the content of a ReadResponse; raises InvalidInput if it is none."""
    content = _content(_READ_TAG, message)
    if content is not None:
        return content
    try:
        return blob_pb2.ReadResponse.FromString(message).data
    except DecodeError as error:
        raise _malformed(error) from error


def _message(tag: int, chunk: Content) -> bytes:
    size, head = len(chunk), [tag]
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return b"".join((bytes(head), chunk))


def _content(tag: int, message: bytes) -> Content | None:
    """Return the content of a message that has nothing else, None for any other."""
    if not message or message[0] != tag:
        return None
    size = at = 0
    while True:
        at += 1
        if at == min(len(message), 6):
            return None
        size |= (message[at] & 0x7F) << 7 * (at - 1)
        if message[at] < 0x80:
            break
    if len(message) != at + 1 + size:
        return None
    return memoryview(message)[at + 1 :]


def _malformed(error: DecodeError) -> InvalidInput:
    return InvalidInput(
        f"blob: not a message of this method ({error}); run one version at both ends"
    )
