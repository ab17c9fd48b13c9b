"""Digests, canonical JSON, atomic files, ids, clocks."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.core.clock import SystemClock
from farm.core.digest import Digest, canonical_json, digest_of
from farm.core.files import private_file, private_folder, write_atomic
from farm.core.ids import random_id
from farm.errors import InvalidInput

HEX = "0123456789abcdef" * 4
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.binary())
def test_digest_of_any_buffer_is_sha256_and_size(data: bytes) -> None:
    expected = Digest(hashlib.sha256(data).hexdigest(), len(data))
    assert digest_of(data) == digest_of(bytearray(data)) == digest_of(memoryview(data)) == expected
    assert str(expected) == f"sha256:{expected.sha256}/{len(data)}"


def test_digest_of_wide_elements_counts_bytes() -> None:
    data = memoryview(bytes(16)).cast("q")
    assert digest_of(data) == digest_of(bytes(16))


@pytest.mark.parametrize(
    "sha256", ["", "0" * 63, "0" * 65, HEX.upper(), HEX[:-1] + "g", HEX + "\n"]
)
def test_digest_that_is_no_lower_case_hex_is_refused(sha256: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Digest(sha256, 0)
    assert error.value.message == (
        f"digest: not 64 lower-case hex digits ({sha256[:80]!r}); pass a SHA-256"
    )


def test_digest_of_negative_size_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"^digest: negative size \(-1\); pass the size in bytes$"
    ):
        Digest(HEX, -1)


def reversed_keys(value: Any) -> Any:
    """Return an equal value whose dictionaries were filled in the other order."""
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=50)
@given(VALUES)
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: Any) -> None:
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(reversed_keys(value)) == data


def test_canonical_json_is_sorted_short_and_utf_8() -> None:
    value = {"b": [1, 2.5, None], "a": {"é": True}}
    assert canonical_json(value) == '{"a":{"é":true},"b":[1,2.5,null]}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": float("nan")})


def test_write_atomic_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"old", b"", b"new" * 9999):
        write_atomic(path, data)
        assert path.read_bytes() == data
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_write_atomic_that_fails_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomic_interrupted_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_write_atomic_into_a_folder_that_is_absent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        write_atomic(tmp_path / "absent" / "file", b"new")
    assert error.value.filename == str(tmp_path / "absent" / "file")


def test_random_id_is_the_prefix_and_64_bits() -> None:
    found = {random_id("lease") for _ in range(100)}
    assert len(found) == 100
    for each in found:
        prefix, _, digits = each.partition("-")
        assert (prefix, len(digits), int(digits, 16) >= 0) == ("lease", 16, True)


def test_system_clock_never_goes_back_and_tells_the_year() -> None:
    clock = SystemClock()
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)
    assert clock.wall() > 1_700_000_000


def test_what_is_private_is_so_under_any_mask_and_also_if_it_was_not_before(tmp_path: Path) -> None:
    kept = os.umask(0)
    try:
        (tmp_path / "old").mkdir(mode=0o755)
        (tmp_path / "old.db").touch(mode=0o644)
        for path in (tmp_path / "old", tmp_path / "above" / "new"):
            private_folder(path)
            assert path.stat().st_mode & 0o777 == 0o700
        for path in (tmp_path / "old.db", tmp_path / "new.db"):
            private_file(path)
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(kept)
