"""Bytes from anywhere: the only error is InvalidFunction, and what is accepted is whole."""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from farm.errors import InvalidFunction
from farm.ir.canonical import canonicalise
from farm.ir.function import Function
from farm.ir.printer import print_function
from farm.ir.wire import parse, serialise, to_proto


def check(data: bytes) -> None:
    """Parse `data`: either it is refused, or all that is done with functions works."""
    try:
        function = parse(data)
    except InvalidFunction:
        return
    assert parse(serialise(function)) == canonicalise(function)
    assert print_function(function)


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x0a\x01\xff")  # a name that is no UTF-8
@example(b"\x1a\xff\xff\xff\xff\x0f")  # a body longer than the bytes
def test_parse_random_bytes_never_gives_another_error(data: bytes) -> None:
    check(data)


@settings(max_examples=200)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_parse_mutated_bytes_never_gives_another_error(
    functions: st.SearchStrategy[Function], data: st.DataObject, seed: int
) -> None:
    rng = random.Random(seed)
    mutated = bytearray(to_proto(data.draw(functions)).SerializeToString())
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(mutated))
        match rng.randrange(4):
            case 0:
                mutated[at] = rng.randrange(256)
            case 1:
                mutated[at] ^= 1 << rng.randrange(8)
            case 2:
                del mutated[at : at + rng.randint(1, 3)]
            case _:
                other = rng.randrange(len(mutated))
                mutated[at:at] = mutated[other : other + rng.randint(1, 40)]
        mutated = mutated or bytearray(b"\0")
    check(bytes(mutated))
