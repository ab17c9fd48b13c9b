"""The first line of an OpenCL section: how its kernels are launched.

Owns: that line. Does not own: the source behind it, or launching (`farm.runtime.opencl`).

Invariant: `split_head(with_head(h, t)) == (h, t)`; a head from outside is checked before it is used.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from farm.core.digest import canonical_json
from farm.errors import ArtifactError

_START = b"// kernel-farm opencl "
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
MAX_LAUNCHES = 1024
MAX_DIMENSIONS = 3
MAX_SCRATCH_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel and how many work items it has in each dimension, at most three."""

    kernel: str
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """What to launch, in order, with the parameters' buffers and then a scratch buffer as arguments."""

    launches: tuple[Launch, ...]
    scratch_bytes: int


def with_head(head: Head, text: str) -> bytes:
    """Return a section's bytes."""
    value = {
        "launches": [[launch.kernel, list(launch.items)] for launch in head.launches],
        "scratch_bytes": head.scratch_bytes,
    }
    return _START + canonical_json(value) + b"\n" + text.encode()


def split_head(data: bytes) -> tuple[Head, str]:
    """Return head and source of a section's bytes; ArtifactError if they are none."""
    line, _, text = data.partition(b"\n")
    if not line.startswith(_START):
        raise ArtifactError("opencl: malformed section (no head); build it again")
    try:
        return _head(json.loads(line.removeprefix(_START))), text.decode()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArtifactError(f"opencl: malformed section ({error}); build it again") from error


def _head(value: dict[str, object]) -> Head:
    launches, scratch = value["launches"], value["scratch_bytes"]
    if type(scratch) is not int or not 0 <= scratch <= MAX_SCRATCH_BYTES:
        raise ValueError(f"scratch of {scratch!r} bytes")
    if not isinstance(launches, list) or not 1 <= len(launches) <= MAX_LAUNCHES:
        raise ValueError("launches is no list")
    return Head(tuple(_launch(*launch) for launch in launches), scratch)


def _launch(kernel: object, items: object) -> Launch:
    if not isinstance(kernel, str) or not _NAME.fullmatch(kernel):
        raise ValueError(f"bad kernel name {kernel!r}")
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_DIMENSIONS:
        raise ValueError(f"bad work items {items!r}")
    if not all(type(n) is int and 1 <= n < 1 << 31 for n in items):
        raise ValueError(f"bad work items {items!r}")
    return Launch(kernel, tuple(items))
