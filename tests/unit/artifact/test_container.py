"""The bytes of a file: damage, hostile fields, other versions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.artifact import Artifact, assemble, container, inspect_bytes
from farm.artifact.container import Entry
from farm.core.digest import canonical_json
from farm.errors import (
    ArtifactCorrupt,
    ArtifactError,
    ArtifactTruncated,
    ArtifactVersion,
    InvalidInput,
)

HOST = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64"


@pytest.fixture(scope="module")
def image(make):
    return assemble(
        HOST, [make("f", "ea -config=ea16", data=b"p" * 70), make("f", kind="host")]
    ).to_bytes()


@pytest.fixture(scope="module")
def entries(image):
    return container.decode(image)[1]


def seal(data):
    """Recompute the header's digest, as somebody who damages a file on purpose would."""
    (table_at,) = struct.unpack_from("<Q", data, 24)
    digest = hashlib.sha256(data[:32] + data[table_at:]).digest()
    return data[:32] + digest + data[64:]


def test_file_truncated_anywhere_is_truncated_or_corrupt(image):
    for size in range(len(image)):
        with pytest.raises(ArtifactTruncated):
            Artifact.from_bytes(image[:size])


def test_file_with_any_bit_flipped_is_refused(image):
    for at in range(len(image)):
        damaged = bytearray(image)
        for bit in (1, 128):
            damaged[at] ^= bit
            with pytest.raises(ArtifactError):
                Artifact.from_bytes(bytes(damaged))
            damaged[at] ^= bit
    assert Artifact.from_bytes(bytes(damaged)).to_bytes() == image


@given(data=st.data())
@settings(max_examples=200)
def test_file_damaged_and_resealed_is_an_artifact_error_or_valid(image, data):
    damaged = bytearray(image)
    (table_at,) = struct.unpack_from("<Q", image, 24)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.one_of(st.integers(12, 31), st.integers(table_at, len(image) - 1)))
        damaged[where] = data.draw(st.sampled_from([0, 1, 2, 63, 64, 127, 128, 255]))
    (table_at,) = struct.unpack_from("<Q", damaged, 24)
    with contextlib.suppress(ArtifactError):
        Artifact.from_bytes(seal(bytes(damaged)) if table_at <= len(damaged) else bytes(damaged))


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_refused(data):
    for candidate in (data, container.MAGIC + data, container.MAGIC + b"\1\0\0\0" + data):
        with pytest.raises(ArtifactError):
            Artifact.from_bytes(candidate)


def test_file_of_another_kind_is_corrupt_and_says_so():
    with pytest.raises(ArtifactCorrupt, match=r"no \.farm file"):
        Artifact.from_bytes(b"\x7fELF" + bytes(100))


def test_file_with_trailing_bytes_is_corrupt(image):
    with pytest.raises(ArtifactCorrupt, match="3 bytes follow its end"):
        Artifact.from_bytes(image + b"abc")


def test_file_of_unknown_major_version_is_refused(image):
    newer = seal(image[:8] + struct.pack("<H", 2) + image[10:])
    with pytest.raises(ArtifactVersion, match=r"unknown major version \(2.0"):
        Artifact.from_bytes(newer)


def test_file_of_newer_minor_version_is_read(image, entries):
    newer = seal(image[:10] + struct.pack("<H", 7) + image[12:])
    assert Artifact.from_bytes(newer) == Artifact.from_bytes(image)
    assert inspect_bytes(newer)["format"] == "1.7"


def test_unknown_optional_section_is_skipped_and_other_refused(image, entries):
    optional = Entry(99, container.FLAG_OPTIONAL, 1, "", "extra", "notes", (), b"anything")
    with_optional = container.encode([entries[0], optional, *entries[1:]])
    assert Artifact.from_bytes(with_optional) == Artifact.from_bytes(image)
    assert inspect_bytes(with_optional)["skipped_sections"] == 1
    needed = Entry(99, 0, 1, "", "extra", "notes", (), b"anything")
    with pytest.raises(ArtifactVersion, match=r"not optional \(99\)"):
        Artifact.from_bytes(container.encode([*entries, needed]))


def manifest_with(entries, **changes):
    value = {**json.loads(entries[0].data), **changes}
    head = Entry(1, 0, 1, "", "", "farm-manifest", (), canonical_json(value))
    return container.encode([head, *entries[1:]])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"abi": 2}, ArtifactVersion, "built for ABI 2"),
        ({"abi": True}, ArtifactCorrupt, "abi is no integer"),
        ({"target_host": 1}, ArtifactCorrupt, "'target_host' is no text"),
        ({"targets": []}, ArtifactCorrupt, "targets is no object"),
        ({"targets": {}}, ArtifactCorrupt, "does not name target"),
        ({"symbols": {}}, ArtifactCorrupt, "symbols are not those"),
        ({"symbols": {"f": 1}}, ArtifactCorrupt, "not an object with params"),
        ({"sections": {}}, ArtifactCorrupt, "sections is no list"),
        ({"sections": [1]}, ArtifactCorrupt, "no object"),
        ({"sections": []}, ArtifactCorrupt, "does not list"),
        ({"sections": [{"symbol": "f"}]}, ArtifactCorrupt, "'kind' is no text"),
    ],
)
def test_manifest_with_a_wrong_field_is_refused(entries, changes, error, message):
    with pytest.raises(error, match=message):
        Artifact.from_bytes(manifest_with(entries, **changes))


def test_manifest_with_unknown_keys_is_read(image, entries):
    more = manifest_with(entries, future={"x": [1]})
    assert Artifact.from_bytes(more) == Artifact.from_bytes(image)


def test_manifest_listing_a_section_twice_is_refused(entries):
    sections = json.loads(entries[0].data)["sections"]
    with pytest.raises(ArtifactCorrupt, match="listed twice"):
        Artifact.from_bytes(manifest_with(entries, sections=[*sections, sections[0]]))


@pytest.mark.parametrize(
    "data", [b"{ }", b"[]", b"\xff", b"{" * 5000, b'{"a":NaN}', b'{"a":"\\ud800"}']
)
def test_manifest_that_is_no_canonical_object_is_refused(entries, data):
    head = Entry(1, 0, 1, "", "", "farm-manifest", (), data)
    with pytest.raises(ArtifactCorrupt, match="manifest: not"):
        Artifact.from_bytes(container.encode([head, *entries[1:]]))


def test_sections_missing_unsorted_or_repeated_are_refused(entries):
    head, first, second = entries
    for bad, message in (
        ([], "no manifest"),
        ([first, head], "no manifest"),
        ([head, head], "two manifests"),
        ([head, second, first], "not sorted"),
        ([head, first, first, second], "not sorted"),
    ):
        with pytest.raises(ArtifactCorrupt, match=message):
            Artifact.from_bytes(container.encode(bad))


def test_section_with_an_impossible_field_is_corrupt(entries):
    head, first, second = entries
    bad = Entry(first.kind, 0, 1, first.target_id, "f", "Not A Format", first.requires, first.data)
    with pytest.raises(ArtifactCorrupt, match="bad format"):
        Artifact.from_bytes(container.encode([head, bad, second]))


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (12, struct.pack("<I", 20_000), "over the limits"),
        (12, struct.pack("<I", 10_000), "do not fit a table"),
        (12, struct.pack("<I", 2), "follow the last table entry"),
        (24, struct.pack("<Q", 63), "impossible table offset"),
        (24, struct.pack("<Q", 1 << 40), "impossible table offset"),
    ],
)
def test_header_with_hostile_numbers_is_refused_before_anything_is_read(
    image, offset, value, message
):
    hostile = image[:offset] + value + image[offset + len(value) :]
    with pytest.raises(ArtifactCorrupt, match=message):
        Artifact.from_bytes(seal(hostile))


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, struct.pack("<I", 3), "impossible size"),
        (12, struct.pack("<Q", 128), "starts at 128"),
        (12, struct.pack("<Q", (1 << 64) - 64), "starts at 18446744073709551552"),
        (20, struct.pack("<Q", 1 << 63), "does not fit the file"),
        (28, b"\0" * 32, "does not match its digest"),
        (60, struct.pack("<H", 0xFFFF), "ends inside an entry"),
    ],
)
def test_table_with_hostile_numbers_is_refused(image, offset, value, message):
    (table_at,) = struct.unpack_from("<Q", image, 24)
    at = table_at + offset
    with pytest.raises(ArtifactCorrupt, match=message):
        Artifact.from_bytes(seal(image[:at] + value + image[at + len(value) :]))


def test_gap_that_is_not_zero_is_refused(image):
    (table_at,) = struct.unpack_from("<Q", image, 24)
    assert image[table_at - 1] == 0
    with pytest.raises(ArtifactCorrupt, match="not zero"):
        Artifact.from_bytes(image[: table_at - 1] + b"\1" + image[table_at:])


def test_encode_over_the_limit_is_refused():
    entry = Entry(99, 1, 1, "", "", "x", (), b"")
    with pytest.raises(InvalidInput, match="too many sections"):
        container.encode([entry] * 16_385)
