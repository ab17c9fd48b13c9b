"""Packed calls: many short ones, whose arrays are pieces of one string of bytes.

Owns: making them in order. Does not own: running one (`farm.runtime`), or where outputs go (`replies`).

Invariant: outputs count only with the number of calls that gave them, which is written after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farm.errors import InvalidArguments

if TYPE_CHECKING:
    from farm.api.v1 import session_pb2
    from farm.runtime.interface import ShortCall
    from farm_agents.worker.replies import Replies


def check_sizes(function: session_pb2.PackedFunction, call: ShortCall) -> None:
    """Raise InvalidArguments unless what a client packed is what the function takes and gives."""
    has = (function.input_bytes, function.output_bytes)
    needs = (call.input_bytes, call.output_bytes)
    if has != needs:
        raise InvalidArguments(
            f"{function.symbol}: packed as {has[0]} bytes in and {has[1]} out; pack {needs[0]} and {needs[1]}",
            symbol=function.symbol,
        )


def make_calls(
    calls: Sequence[ShortCall], order: Sequence[int], packed: bytes, replies: Replies
) -> None:
    """Make calls until one fails; raises what it failed of, with all before it in `replies`.

    Parameters
    ----------
    order
        Indices into `calls`.
    packed
        Inputs of all calls, one after the other.
    """
    inputs, outputs, made = memoryview(packed), replies.outputs, replies.made
    start = end = 0
    for number, index in enumerate(order, 1):
        call = calls[index]
        call(inputs, start, outputs, end)
        start += call.input_bytes
        end += call.output_bytes
        made[0] = number
