"""Choosing slices for a device."""

from __future__ import annotations

import dataclasses

import pytest

from farm.artifact import Artifact, assemble, choose
from farm.artifact.choice import choose_private, missing
from farm.errors import HostMismatch, NoVariant
from farm.target.cpus import cpu_features

V1 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64"
V3 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"
ZEN = "llvm -mtriple=x86_64-linux-gnu -mcpu=znver3"
BULLDOZER = "llvm -mtriple=x86_64-linux-gnu -mcpu=bdver2"
ARM = "llvm -mtriple=aarch64-linux-gnu -mcpu=generic"
EA16, EA8 = "ea -config=ea16", "ea -config=ea8"
PLAIN = {"arch:x86_64"}
FULL = {"arch:x86_64", "cpu-feature:*"}


def chosen(artifact, targets, provides):
    found = choose(artifact, targets, provides)
    return {s: (c.section.target, c.host.target if c.host else None) for s, c in found.items()}


def test_best_slice_that_the_device_supports_is_chosen(make):
    artifact = assemble(V1, [make("f", V1), make("f", V3), make("f", ARM), make("g", V1)])
    assert chosen(artifact, [V1], FULL) == {"f": (V3, None), "g": (V1, None)}
    assert chosen(artifact, [V3], PLAIN) == {"f": (V1, None), "g": (V1, None)}


def test_a_cpu_whose_features_are_not_listed_needs_that_cpu_or_the_wildcard(make):
    artifact = assemble(V1, [make("f", V1), make("f", BULLDOZER)])
    assert chosen(artifact, [V1], PLAIN) == {"f": (V1, None)}
    for extra in ("cpu:bdver2", "cpu:*"):
        assert chosen(artifact, [V1], PLAIN | {extra}) == {"f": (BULLDOZER, None)}


def test_a_cpu_whose_features_are_listed_needs_those_whatever_its_name(make):
    artifact = assemble(V1, [make("f", V1), make("f", ZEN)])
    features = {f"cpu-feature:{name}" for name in cpu_features("x86_64", "znver3")}
    assert chosen(artifact, [V1], PLAIN | features) == {"f": (ZEN, None)}
    for name in features:
        assert chosen(artifact, [V1], (PLAIN | features) - {name}) == {"f": (V1, None)}


def test_accelerator_is_preferred_with_its_host_stub(make):
    modules = [make("f", V3), make("f", EA16), make("f", V1, kind="host"), make("g", V1)]
    artifact = assemble(V1, modules)
    provides = FULL | {"ea-config:ea16"}
    assert chosen(artifact, [EA16, V3], provides) == {"f": (EA16, V1), "g": (V1, None)}
    assert choose(artifact, [EA16, V3], provides)["f"].linked.kind == "host"
    assert chosen(artifact, [V3], FULL)["f"] == (V3, None)


def test_accelerator_of_another_config_is_not_run(make):
    artifact = assemble(V1, [make("f", EA8), make("f", V1, kind="host"), make("f", V1)])
    provides = FULL | {"ea-config:ea16"}
    assert chosen(artifact, [EA16, V1], provides) == {"f": (V1, None)}


def test_accelerator_without_a_usable_host_falls_back_to_the_cpu(make):
    artifact = assemble(ARM, [make("f", EA16), make("f", ARM, kind="host"), make("f", V1)])
    assert chosen(artifact, [EA16, V1], FULL | {"ea-config:ea16"}) == {"f": (V1, None)}


def test_accelerator_whose_host_is_another_machine_is_a_host_mismatch(make):
    artifact = assemble(ARM, [make("f", EA16), make("f", ARM, kind="host")])
    with pytest.raises(HostMismatch) as caught:
        choose(artifact, [EA16, V1], FULL | {"ea-config:ea16"})
    assert caught.value.message == (
        f"f: no host stub for this device ({EA16}: its host stub is for ({ARM}), the device's host "
        "lacks arch:aarch64); build with target_host for the device's host"
    )


def test_accelerator_whose_host_stub_is_absent_is_a_host_mismatch(make):
    with pytest.raises(HostMismatch, match="its host stub is absent"):
        choose(assemble(V1, [make("f", EA16)]), [EA16], FULL | {"ea-config:ea16"})


def test_no_slice_lists_has_needs_and_what_is_missing(make):
    artifact = assemble(V1, [make("f", ARM), make("f", V3)])
    with pytest.raises(NoVariant) as caught:
        choose(artifact, [V1], PLAIN | {"cpu-feature:avx"})
    error = caught.value
    assert f"{ARM}: the device runs no llvm/aarch64" in error.message
    assert f"{V3}: lacks cpu-feature:avx2, cpu-feature:bmi" in error.message
    assert error.details["symbol"] == "f"
    assert set(error.details["has"].split(", ")) == {ARM, V3}
    assert error.details["needs"] == "llvm/x86_64"
    assert error.details["provides"] == "arch:x86_64, cpu-feature:avx"


def test_slice_of_an_unknown_target_kind_is_passed_over(make):
    artifact = assemble(V1, [make("f", V1)])
    strange = dataclasses.replace(
        artifact.sections[0], target="npu -x=1", target_id="0" * 16, requires=()
    )
    both = Artifact(artifact.target_host, (strange, *artifact.sections), artifact.signatures)
    assert chosen(both, [V1], PLAIN) == {"f": (V1, None)}
    alone = Artifact(artifact.target_host, (strange,), artifact.signatures)
    with pytest.raises(NoVariant, match="npu -x=1: unknown target here"):
        choose(alone, [V1], PLAIN)


def test_slice_built_for_another_revision_of_its_target_is_refused(make):
    artifact = assemble(V1, [make("f", V1)])
    older = dataclasses.replace(artifact.sections[0], target_id="0" * 16)
    with pytest.raises(NoVariant, match="another revision"):
        choose(Artifact(artifact.target_host, (older,), artifact.signatures), [V1], PLAIN)


def test_private_helpers_are_chosen_apart_for_each_target_that_runs(make):
    name = "__farm_private_h"
    artifact = assemble(V1, [make("f"), make(name + "1", V1), make(name + "3", V3)])
    assert set(choose(artifact, [V1], FULL)) == {"f"}
    helpers = choose_private(artifact, [V1], FULL)
    assert {symbol: section.target for symbol, section in helpers.items()} == {
        name + "1": V1,
        name + "3": V3,
    }
    assert set(choose_private(artifact, [V1], PLAIN)) == {name + "1"}


def test_missing_keeps_the_order_and_knows_wildcards():
    requires = ("arch:x86_64", "cpu-feature:avx", "cpu:znver3")
    assert missing(requires, set()) == requires
    assert missing(requires, {"cpu:*", "arch:x86_64"}) == ("cpu-feature:avx",)
    assert missing(requires, {"*", "cp:*"}) == requires
