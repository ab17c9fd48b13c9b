from __future__ import annotations

import dataclasses
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.ea.assembly import assemble
from farm.ea.config import EA8, EA16
from farm.ea.encoding import decode, decode_program, encode, encode_program
from farm.ea.faults import Fault
from farm.ea.isa import LAYOUTS, PAYLOAD_BITS, Fence, Halt, Load, Mark, Sync, Transfer
from farm.ea.program import Arg, Program
from farm.ea.syntax import FORMS
from farm.ea.verify import verify
from farm.errors import InvalidProgram


@st.composite
def instructions(draw):
    layout = draw(st.sampled_from(LAYOUTS))
    values = {flag: draw(st.booleans()) for flag in layout.flags if flag is not None}
    for field in layout.fields:
        if field.enum is not None:
            values[field.name] = draw(st.sampled_from(list(field.enum)))
        else:
            values[field.name] = draw(st.integers(field.low, field.high))
    semaphores = st.lists(st.integers(0, 14), max_size=2).map(tuple)
    return layout.kind(waits=draw(semaphores), posts=draw(semaphores), **values)


def test_layouts_fit_the_payload_and_match_their_classes():
    for layout in LAYOUTS:
        assert layout.bits <= PAYLOAD_BITS
        declared = {field.name for field in layout.fields} | set(filter(None, layout.flags))
        own = {field.name for field in dataclasses.fields(layout.kind)} - {"waits", "posts"}
        assert declared == own


@given(instructions())
def test_encode_decode_any_instruction_round_trips(instruction):
    assert decode(encode(instruction)) == instruction


@given(st.binary(min_size=16, max_size=16), st.sampled_from([each.opcode for each in LAYOUTS]))
def test_decode_any_word_is_refused_or_encodes_to_itself(data, opcode):
    word = bytes([data[0] & 0xC0 | opcode]) + data[1:]
    refused = None
    try:
        again = encode(decode(word))
    except InvalidProgram as error:
        refused, again = error.details["fault"], word
    assert (refused in (None, Fault.BAD_FIELD), again) == (True, word)


def test_encode_known_instruction_gives_the_documented_bits():
    load = Load(
        space=Transfer.ACC_I32,
        arg=2,
        row=3,
        rows=4,
        cols=5,
        lstride=6,
        dstride=7,
        offset=8,
        waits=(9,),
        posts=(10, 11),
        fill=True,
    )
    payload, at = 0, 0
    for value, width in zip((1, 2, 3, 4, 5, 6, 7, 8), (2, 4, 15, 12, 12, 12, 20, 27), strict=True):
        payload |= value << at
        at += width
    word = 0x10 | 9 << 6 | 15 << 10 | 10 << 14 | 11 << 18 | 1 << 22 | payload << 24
    assert encode(load) == word.to_bytes(16, "little")


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        (0, Fault.BAD_OPCODE),
        (0x3F, Fault.BAD_OPCODE),
        (0x01 | 0xFFFF << 6 | 1 << 22, Fault.BAD_FIELD),  # a flag that HALT has not
        (0x01 | 0xFFFF << 6 | 1 << 127, Fault.BAD_FIELD),  # an unused bit
        (0x03 | 0xFF3F << 6, Fault.BAD_FIELD),  # second slot filled, first empty
        (0x30 | 0xFFFF << 6 | 31 << 24, Fault.BAD_FIELD),  # an operation that does not exist
    ],
)
def test_decode_illegal_word_is_refused(word, fault):
    with pytest.raises(InvalidProgram) as caught:
        decode(word.to_bytes(16, "little"))
    assert caught.value.details["fault"] == fault


def test_decode_wrong_length_is_refused():
    with pytest.raises(InvalidProgram, match="15 bytes"):
        decode(bytes(15))


@pytest.mark.parametrize(
    ("instruction", "name"),
    [
        (Mark(engine=0, tag=1 << 16), "tag"),
        (Sync(engine=0, waits=(15,)), "semaphores"),
        (Sync(engine=0, posts=(0, 1, 2)), "semaphores"),
    ],
)
def test_encode_field_that_does_not_fit_is_refused(instruction, name):
    with pytest.raises(InvalidProgram, match=f"bad {name}"):
        encode(instruction)


def small_program() -> Program:
    args = (Arg("arg0", 100), Arg("arg1", 0), Arg("arg2", 1 << 33))
    load = Load(space=Transfer.SPAD_I8, row=0, rows=1, cols=1, posts=(2,))
    return Program(EA16, args, ("sem0", "sem1", "sem2"), (load, Fence(), Halt()))


def test_image_round_trips_and_begins_as_documented():
    image = encode_program(small_program())
    assert decode_program(image) == decode_program(image, EA16) == small_program()
    assert image[:12] == b"EAPR\x01\x00\x03\x00\x03\x00\x00\x00"
    assert image[16:24].hex() == EA16.config_id
    assert len(image) == 32 + 4 * 8 + 3 * 16


@given(st.integers(0, 32 + 4 * 8 + 3 * 16 - 1), st.integers(0, 7))
def test_image_with_any_flipped_bit_is_refused(at, bit):
    image = bytearray(encode_program(small_program()))
    image[at] ^= 1 << bit
    with pytest.raises(InvalidProgram) as caught:
        decode_program(bytes(image))
    assert caught.value.details["reason"] in ("magic", "version", "config", "length", "checksum")


@given(st.integers(0, 32 + 4 * 8 + 3 * 16 - 1))
def test_image_truncated_anywhere_is_refused(size):
    with pytest.raises(InvalidProgram) as caught:
        decode_program(encode_program(small_program())[:size])
    assert caught.value.details["reason"] == "length"


def with_checksum(image: bytes) -> bytes:
    blank = image[:12] + bytes(4) + image[16:]
    return image[:12] + zlib.crc32(blank).to_bytes(4, "little") + image[16:]


@pytest.mark.parametrize(
    ("at", "value", "details"),
    [
        (24, 1, {"reason": "reserved"}),
        (32 + 24, 1, {"reason": "reserved"}),  # the padding after three lengths
        (32 + 7, 1, {}),  # an absurd minimum length
        (64 + 16, 0x3F, {"fault": "BAD_OPCODE", "pc": "1"}),
        (4, 2, {"reason": "version", "fault": "VERSION"}),
    ],
)
def test_image_with_impossible_contents_and_right_checksum_is_refused(at, value, details):
    image = bytearray(encode_program(small_program()))
    image[at] = value
    with pytest.raises(InvalidProgram) as caught:
        decode_program(with_checksum(bytes(image)))
    assert caught.value.details == details


def test_image_that_claims_too_much_is_refused_before_it_is_read():
    image = bytearray(encode_program(small_program()))
    image[8:12] = b"\xff\xff\xff\xff"
    with pytest.raises(InvalidProgram, match="too large"):
        decode_program(bytes(image))


def test_image_for_another_machine_is_refused_as_version_fault():
    with pytest.raises(InvalidProgram, match="build for ea8") as caught:
        decode_program(encode_program(small_program()), EA8)
    assert caught.value.details == {"reason": "config", "fault": "VERSION"}


def test_page_names_every_form_field_flag_and_fault():
    page = (Path(__file__).parents[3] / "docs" / "ea-isa.md").read_text(encoding="utf-8")
    words = set(re.findall(r"[A-Za-z0-9_.]+", page))
    wanted = set(FORMS) | set(Fault) | {field.name for each in LAYOUTS for field in each.fields}
    wanted |= {flag for each in LAYOUTS for flag in each.flags if flag is not None}
    assert wanted - words == set()


def test_page_example_assembles_and_is_correct():
    page = (Path(__file__).parents[3] / "docs" / "ea-isa.md").read_text(encoding="utf-8")
    example = page.split("## Text")[1].split("\n\nFields")[0]
    assert verify(assemble(example)) == []
