"""``farm inspect``: what it shows, and what it refuses."""

from __future__ import annotations

import farm

KEYS = {
    *("format", "abi", "sha256", "size_bytes", "target_host", "targets", "symbols", "sections"),
    "skipped_sections",
}
SECTION_KEYS = {
    *("kind", "symbol", "target", "target_id", "format", "format_version", "requires"),
    *("toolchain", "size_bytes", "sha256"),
}


def test_inspect_in_json_is_what_the_library_says(cli, artifact):
    ended = cli("inspect", artifact, "-o", "json")
    assert (ended.code, ended.err) == (0, "")
    assert set(ended.json) == KEYS
    assert [set(section) for section in ended.json["sections"]] == [SECTION_KEYS]
    assert ended.json == farm.inspect_bytes(artifact.read_bytes())


def test_inspect_in_text_shows_digest_signature_and_sections(cli, artifact):
    ended = cli("inspect", artifact)
    about = farm.inspect_bytes(artifact.read_bytes())
    assert (ended.code, ended.err) == (0, "")
    assert f"sha256:{about['sha256']}/{about['size_bytes']}" in ended.out
    assert "mix(input a: int8[2, 3], inout b: float32[4], output c: bool[])" in ended.out
    row = next(line for line in ended.out.splitlines() if line.startswith("mix "))
    assert row.split()[:4] == ["mix", "device", "llvm", "-mtriple=x86_64-linux-gnu"]
    assert row.endswith("arch:x86_64")


def test_inspect_of_a_truncated_artifact_ends_with_2_and_its_code(cli, artifact):
    artifact.write_bytes(artifact.read_bytes()[:-1])
    ended = cli("inspect", artifact, "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "ARTIFACT_TRUNCATED")


def test_inspect_of_an_artifact_with_one_flipped_bit_ends_with_2_and_its_code(cli, artifact):
    data = bytearray(artifact.read_bytes())
    data[-1] ^= 1
    artifact.write_bytes(data)
    ended = cli("inspect", artifact, "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "ARTIFACT_CORRUPT")


def test_inspect_of_an_empty_file_ends_with_2(cli, artifact):
    artifact.write_bytes(b"")
    assert cli("inspect", artifact).code == 2


def test_inspect_of_a_device_that_never_ends_is_refused_unread(cli):
    assert (ended := cli("inspect", "/dev/zero")).code == 2
    assert ended.err == "error: /dev/zero: no regular file; name a file\n"


def test_inspect_of_a_file_over_the_limit_is_refused_without_reading(cli, artifact):
    with artifact.open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    ended = cli("inspect", artifact, "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "ARTIFACT_CORRUPT")
