"""Limits of the wire, which clients keep and services check: each is written here and in the comments of ``protos``.

Owns: numbers that both ends of a connection must agree on. Does not own: limits of one process alone.

Invariant: raising one here is safe only when every peer has the new number.
"""

from __future__ import annotations

DEFAULT_LIMIT_S = 30.0
"""Limit of a run whose request names none."""
MIN_LIMIT_S = 0.01
MAX_LIMIT_S = 600.0
"""Of a call, a batch or a run in a session."""
MAX_JOB_TERM_S = 600.0
"""Of the lease of a job's run, which nobody renews: the sum of the limits of everything that is done under it."""
JOB_PREPARE_S = 30.0
"""Within it: until a worker is ready."""
JOB_SETUP_S = 60.0
"""Then until the artifact and inputs are there and loaded."""
JOB_END_S = 15.0
"""After the run: until what it started is killed and its outputs are taken."""
MAX_JOB_LIMIT_S = MAX_JOB_TERM_S - JOB_PREPARE_S - JOB_SETUP_S - JOB_END_S
"""Of a job's run itself: 495 s."""
MAX_REPEAT = 10_000
"""Timed calls in one request."""

MAX_CALLS = 10_000
"""Calls in one request."""
MAX_FUNCTIONS = 1_024
"""Functions that one packed request names."""
MAX_PACKED_BYTES = 16 << 20
"""Inputs of one packed request, and outputs."""
MAX_FIRST_OUTPUT_BYTES = 64 << 10
"""Outputs of calls that are made in the request that loads their module."""
MAX_FOLLOWS = 1_000
"""How far back the request may be that another one goes on from."""

MAX_INLINE_BYTES = 256 << 10
"""Content of an array that travels inside a message; more is a blob."""
MAX_INLINE_ARTIFACT_BYTES = 64 << 10
"""An artifact that travels with the request to load it; agents keep those of a session in memory."""
MAX_INLINE_FUNCTION_BYTES = 64 << 10
"""A function that travels with a request or order to build it."""
MAX_INLINE_FUNCTIONS_BYTES = 4 << 20
"""All that travel with one request."""
MAX_INLINE_OBJECT_BYTES = 64 << 10
"""A compiled object that travels with the report of its build; an agent has at most 256 of them to report."""
MAX_INLINE_RESULT_BYTES = 1 << 20
"""An artifact that travels with the result of its build."""
MAX_RANK = 16
MAX_TENSOR_BYTES = 1 << 32

CHUNK_BYTES = 1 << 20
"""Bytes of a blob in one message."""
MAX_FIND_MISSING = 10_000
"""Digests in one question."""
MAX_MESSAGE_BYTES = 64 << 20
"""Any message of any service."""

MAX_KEY_BYTES = 128
"""A client's key for a submit or build."""
MAX_HOLDER_BYTES = 128
MAX_REASON_BYTES = 256
MAX_PRIORITY = 100
MIN_QUEUE_LIMIT_S = 0.1
MAX_QUEUE_LIMIT_S = 30 * 86_400.0
MIN_TTL_S = 1.0
MAX_TTL_S = 600.0
MAX_WAIT_S = 86_400.0
MAX_LISTED_JOBS = 1_000
MAX_COUNT = 1_000_000
"""Devices, or requests that wait, of one account."""
MAX_NUMBER = 1 << 53
"""Of an event, a chunk of a log, an epoch."""

MAX_ERROR_BYTES = 64 << 10
"""Message of an error."""
MAX_CODE_BYTES = 64
MAX_DETAILS = 32
MAX_DETAIL_BYTES = 2_048
