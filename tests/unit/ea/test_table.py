from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.ea import table
from farm.ea.encoding import decode, encode
from farm.ea.isa import LAYOUTS, NO_SEMAPHORE, engine_of
from farm.errors import InvalidProgram


@st.composite
def instructions(draw):
    layout = draw(st.sampled_from(LAYOUTS))
    values = {}
    for field in layout.fields:
        legal = (
            st.integers(field.low, field.high)
            if field.enum is None
            else st.sampled_from(field.enum)
        )
        values[field.name] = draw(legal)
    for flag in layout.flags:
        if flag is not None:
            values[flag] = draw(st.booleans())
    for tokens in ("waits", "posts"):
        values[tokens] = tuple(draw(st.lists(st.integers(0, NO_SEMAPHORE - 1), max_size=2)))
    return layout.kind(**values)


@given(st.lists(instructions(), max_size=8))
def test_the_table_holds_what_each_word_says(stream):
    rows = table.instruction_table(b"".join(map(encode, stream)))
    assert rows.shape == (len(stream), table.COLUMNS)
    for row, instruction in zip(rows.tolist(), stream, strict=True):
        engine = engine_of(instruction)
        assert row[table.ENGINE] == (table.DISPATCHER if engine is None else engine)
        for field in dataclasses.fields(instruction):
            value = getattr(instruction, field.name)
            if field.name in ("waits", "posts"):
                first = table.WAIT0 if field.name == "waits" else table.POST0
                padded = [*value, NO_SEMAPHORE, NO_SEMAPHORE][:2]
                assert row[first : first + 2] == padded
            elif isinstance(value, bool):
                on = bool(row[table.FLAGS] & table.flag_bit(type(instruction), field.name))
                assert on is value
            else:
                assert row[table.column(type(instruction), field.name)] == value


def test_a_word_is_refused_exactly_where_the_decoder_refuses_it():
    rng = random.Random(1)
    good = [encode(layout.kind(**_least(layout))) for layout in LAYOUTS]
    seen = {True: 0, False: 0}
    for _ in range(500):
        word = bytearray(rng.choice(good))
        for _ in range(rng.randint(0, 3)):
            bit = rng.randrange(128)
            word[bit // 8] ^= 1 << bit % 8
        try:
            decode(bytes(word))
            legal = True
        except InvalidProgram as error:
            legal, fault = False, error.details["fault"]
        seen[legal] += 1
        if legal:
            assert len(table.instruction_table(good[0] + bytes(word))) == 2
        else:
            with pytest.raises(InvalidProgram, match="pc 1: ") as refusal:
                table.instruction_table(good[0] + bytes(word) + good[0])
            assert refusal.value.details["fault"] == fault
    assert min(seen.values()) > 60


def _least(layout):
    needed = [field for field in layout.fields if field.name not in layout.defaults]
    return {field.name: field.low if field.enum is None else min(field.enum) for field in needed}


def test_no_words_make_an_empty_table():
    rows = table.instruction_table(b"")
    assert rows.shape == (0, table.COLUMNS)
    assert rows.dtype == np.int32
