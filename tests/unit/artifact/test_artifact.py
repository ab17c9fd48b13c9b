"""Artifacts as values: assembling, slicing, merging."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.artifact import (
    Artifact,
    BuiltModule,
    ParamSpec,
    Signature,
    assemble,
    inspect_bytes,
    merge,
)
from farm.errors import ArtifactCorrupt, DuplicateSymbol, HostMismatch, InvalidInput, NoVariant
from farm.target import Target

HOST = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64"
ARM = "llvm -mtriple=aarch64-linux-gnu"
EA = "ea -config=ea16"
OTHER = Signature((ParamSpec("z", "int8", (1,), "input"),))


@pytest.fixture(scope="module")
def pool(make):
    """Modules that fit each other, and some that do not."""
    return [
        make("f"),
        make("f", ARM),
        make("f", EA),
        make("f", HOST, kind="host"),
        make("g", ARM),
        make("g", ARM, data=b"other code"),
        make("h", signature=OTHER),
        make("h", ARM),
    ]


def try_merge(a, b):
    """Merge, or the reason's class; a reason goes through unchanged."""
    if isinstance(a, type) or isinstance(b, type):
        return DuplicateSymbol
    try:
        return merge(a, b)
    except DuplicateSymbol:
        return DuplicateSymbol


picks = st.lists(st.integers(0, 7), max_size=5, unique=True)


@given(st.lists(picks, min_size=3, max_size=3))
@settings(max_examples=150)
def test_merge_is_commutative_associative_and_idempotent(pool, indices):
    parts = []
    for chosen in indices:
        try:
            parts.append(assemble(HOST, [pool[i] for i in chosen]))
        except DuplicateSymbol:
            parts.append(assemble(HOST, []))
    a, b, c = parts
    assert try_merge(a, a) == a
    assert try_merge(a, b) == try_merge(b, a)
    assert try_merge(try_merge(a, b), c) == try_merge(a, try_merge(b, c))


def test_merge_equals_assembling_together(pool):
    whole = assemble(HOST, pool[:5])
    parts = [assemble(HOST, [module]) for module in pool[:5]]
    merged = parts[0]
    for part in reversed(parts):
        merged = merge(merged, part)
    assert merged.to_bytes() == whole.to_bytes()


def test_merge_of_different_code_or_signature_is_refused(pool):
    with pytest.raises(DuplicateSymbol, match=r"different code for g \(device, llvm.*aarch64"):
        merge(assemble(HOST, [pool[4]]), assemble(HOST, [pool[5]]))
    with pytest.raises(DuplicateSymbol, match="two signatures of h"):
        merge(assemble(HOST, [pool[6]]), assemble(HOST, [pool[7]]))


def test_merge_of_different_hosts_is_refused_the_same_way_round():
    a, b = assemble(HOST, []), assemble(ARM, [])
    messages = []
    for left, right in ((a, b), (b, a)):
        with pytest.raises(HostMismatch) as caught:
            merge(left, right)
        messages.append(caught.value.message)
    assert messages[0] == messages[1]


def test_assemble_in_any_order_gives_the_same_bytes(pool):
    images = {assemble(HOST, order).to_bytes() for order in itertools.permutations(pool[:4])}
    assert len(images) == 1


def test_assemble_of_repeats_is_refused(pool):
    with pytest.raises(DuplicateSymbol, match="was built twice"):
        assemble(HOST, [pool[4], pool[5]])
    with pytest.raises(DuplicateSymbol, match="two signatures of h"):
        assemble(HOST, [pool[6], pool[7]])


def test_assemble_with_stub_for_another_host_is_refused(make):
    with pytest.raises(HostMismatch, match="host stub of f was compiled for"):
        assemble(HOST, [make("f", ARM, kind="host")])


def test_artifact_saved_loads_equal(pool, tmp_path):
    artifact = assemble(HOST, pool[:5])
    path = tmp_path / "a.farm"
    artifact.save(path)
    assert Artifact.load(path) == artifact
    assert Artifact.load(path).digest == artifact.digest
    assert list(tmp_path.iterdir()) == [path]


def test_artifact_is_saved_and_loaded_by_a_path_in_text_too(pool, tmp_path):
    artifact = assemble(HOST, pool[:5])
    artifact.save(f"{tmp_path}/a.farm")
    assert Artifact.load(f"{tmp_path}/a.farm") == artifact


@pytest.mark.parametrize("path", [Path("/dev/zero"), Path("/")])
def test_artifact_that_is_no_regular_file_is_not_read(path):
    with pytest.raises(InvalidInput, match="no regular file"):
        Artifact.load(path)


def test_artifact_on_disk_over_the_limit_is_not_read(tmp_path):
    path = tmp_path / "huge.farm"
    with path.open("wb") as file:
        file.truncate((1 << 31) + 1)
    with pytest.raises(ArtifactCorrupt, match="too large"):
        Artifact.load(path)


def test_artifact_empty_round_trips():
    artifact = assemble(HOST, [])
    assert Artifact.from_bytes(artifact.to_bytes()) == artifact
    assert artifact.symbols == {}


def test_sections_are_aligned_so_that_they_can_be_mapped(make):
    data = bytes(range(256))
    artifact = assemble(HOST, [make("f", data=data), make("g", data=b"x" * 65)])
    image = artifact.to_bytes()
    assert image.index(data) % 64 == 0
    assert image.index(b"x" * 65) % 64 == 0


def test_thin_keeps_slices_and_the_stubs_they_need(pool):
    artifact = assemble(HOST, pool[:5])
    keys = [(s.symbol, s.kind, s.target) for s in artifact.thin([EA]).sections]
    assert sorted(keys) == sorted([("f", "device", EA), ("f", "host", HOST)])
    arm = artifact.thin([Target.parse(ARM)])
    assert [(s.symbol, s.kind) for s in arm.sections] == [("f", "device"), ("g", "device")]
    assert sorted(arm.symbols) == ["f", "g"]
    everything = artifact.thin([EA, ARM, HOST])
    assert everything == artifact
    assert merge(artifact.thin([EA]), artifact.thin([ARM, HOST])) == artifact


def test_thin_to_nothing_lists_has_and_needs(pool):
    with pytest.raises(NoVariant) as caught:
        assemble(HOST, [pool[1]]).thin([EA])
    assert caught.value.details == {"has": pool[1].target, "needs": EA}


def test_inspect_tells_everything_as_plain_data(make):
    artifact = assemble(HOST, [make("f", EA), make("f", kind="host")])
    data = artifact.to_bytes()
    told = inspect_bytes(data)
    assert told["format"] == "1.0"
    assert told["abi"] == 1
    assert told["sha256"] == artifact.digest.sha256
    assert told["size_bytes"] == len(data)
    assert told["targets"] == [EA, HOST]
    assert told["symbols"] == {"f": artifact.symbols["f"].to_object()["params"]}
    assert [
        (s["kind"], s["symbol"], s["target"], s["format"], s["size_bytes"], s["requires"])
        for s in told["sections"]
    ] == [
        ("device", "f", EA, "ea-program", 4, ["ea-config:ea16"]),
        ("host", "f", HOST, "elf-object", 4, ["arch:x86_64"]),
    ]
    assert told["skipped_sections"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"symbol": "a b"}, "malformed symbol"),
        ({"kind": "other"}, "unknown kind"),
        ({"target": "llvm\n"}, "bad target"),
        ({"toolchain": ""}, "bad toolchain"),
        ({"format": "ELF"}, "bad format"),
        ({"format_version": 1 << 16}, "bad format"),
        ({"data": b""}, "bad size"),
        ({"requires": ("b:1", "a:1")}, "not sorted"),
        ({"requires": ("a:1", "a:1")}, "not sorted"),
        ({"requires": ("plain",)}, "malformed requirement"),
        ({"requires": ("cpu:*",)}, "malformed requirement"),
    ],
)
def test_module_with_a_bad_field_is_refused(make, change, message):
    module = make("f")
    fields = {name: getattr(module, name) for name in BuiltModule.__dataclass_fields__}
    with pytest.raises(InvalidInput, match=message):
        BuiltModule(**{**fields, **change})
