"""What the tracker reads of an artifact agrees with what devices choose."""

from __future__ import annotations

import asyncio

import pytest
from farm_tracker.cas import BlobStore
from farm_tracker.state.demand import demand_of
from farm_tracker.state.model import Description, TimingClass
from farm_tracker.variants import KEPT, Variants, outline_of

from farm.artifact import BuiltModule, ParamSpec, Signature, assemble, choose
from farm.core.digest import digest_of
from farm.errors import ArtifactCorrupt, NotFound, NoVariant
from farm.target import Selector, Target

X86 = str(Target.parse("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"))
ARM = str(Target.parse("llvm -mtriple=aarch64-linux-gnu"))
EA = str(Target.parse("ea -config=ea16"))
SIGNATURE = Signature((ParamSpec("a", "int32", (4,), "input", 4),))


def module(symbol, target, kind="device"):
    parsed = Target.parse(target)
    format_ = "ea-program" if parsed.is_accelerator else "elf-object"
    return BuiltModule(
        kind, symbol, target, format_, 1, parsed.requires, "test 1", SIGNATURE, symbol.encode()
    )


@pytest.fixture
def artifact():
    """Functions for each of three targets, with a host stub for the accelerator's."""
    modules = [
        module("both", X86),
        module("both", ARM),
        module("arm", ARM),
        module("fast", EA),
        module("fast", X86, "host"),
        module("__helper", X86),
    ]
    return assemble(X86, modules)


DEVICES = {
    "x86": ((X86,), Target.parse(X86).requires),
    "old x86": ((X86,), ("arch:x86_64",)),
    "arm": ((ARM,), Target.parse(ARM).requires),
    "ea on x86": ((EA, X86), (*Target.parse(EA).requires, *Target.parse(X86).requires)),
    "ea on arm": ((EA, ARM), (*Target.parse(EA).requires, *Target.parse(ARM).requires)),
}


@pytest.mark.parametrize("name", DEVICES)
def test_device_fits_a_function_exactly_if_it_would_choose_a_slice(artifact, name):
    targets, provides = DEVICES[name]
    about = Description(name, targets, {}, TimingClass.NATIVE, provides)
    outline = outline_of(artifact)
    assert set(outline) == {"both", "arm", "fast"}
    try:
        chosen = set(choose(artifact, targets, provides))
    except NoVariant:
        chosen = set()
    fits = {it for it, some in outline.items() if demand_of(Selector(()), some).can_run(about)}
    assert fits == chosen


def test_artifacts_are_read_once_and_a_few_are_kept(tmp_path, artifact, monkeypatch):
    blobs = BlobStore(tmp_path)
    digests = [blobs.put(artifact.to_bytes())]
    variants = Variants(blobs)
    reads = []
    monkeypatch.setattr(variants, "_read", lambda it: reads.append(it) or outline_of(artifact))

    async def ask():
        await asyncio.gather(*(variants.of(digests[0], "both") for _ in range(5)))
        for number in range(KEPT + 10):
            await variants.of(digest_of(bytes([number % 256, number // 256])), "both")

    asyncio.run(ask())
    assert reads.count(digests[0]) == 1
    assert len(variants._known) == KEPT


def test_what_cannot_be_run_is_refused_with_the_reason(tmp_path, artifact):
    blobs = BlobStore(tmp_path)
    good, junk = blobs.put(artifact.to_bytes()), blobs.put(b"junk")
    variants = Variants(blobs)
    with pytest.raises(
        NotFound, match="function other: not in this artifact; it has arm, both, fast"
    ):
        asyncio.run(variants.of(good, "other"))
    with pytest.raises(NotFound, match="function __helper"):
        asyncio.run(variants.of(good, "__helper"))
    with pytest.raises(ArtifactCorrupt):
        asyncio.run(variants.of(junk, "both"))
    with pytest.raises(NotFound, match="not in the store"):
        asyncio.run(variants.of(digest_of(b"absent"), "both"))
