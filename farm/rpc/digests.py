"""Digests on the wire.

Owns: conversion between `farm.core.digest.Digest` and its message.
Does not own: blobs (`farm.rpc.blobs`).

Invariant: `digest_from_proto(digest_to_proto(d)) == d`.
"""

from __future__ import annotations

from farm.api.v1 import digest_pb2
from farm.core.digest import Digest


def digest_to_proto(digest: Digest) -> digest_pb2.Digest:
    """Return the message for a digest."""
    return digest_pb2.Digest(sha256=digest.sha256, size_bytes=digest.size_bytes)


def digest_from_proto(message: digest_pb2.Digest) -> Digest:
    """Return the digest that a message holds; raises InvalidInput if it is malformed or unset."""
    return Digest(message.sha256, message.size_bytes)
