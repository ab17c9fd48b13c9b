"""What a machine is, from the kernel's text."""

from __future__ import annotations

import platform
import sys

import pytest

from farm.target import host
from farm.target.cpus import cpu_features

X86 = """processor\t: 0
model name\t: Some CPU
flags\t\t: fpu pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm avx bmi1 abm avx512_vnni sha_ni
bugs\t\t: none

processor\t: 1
flags\t\t: fpu avx2
"""
ARM = """processor\t: 0
BogoMIPS\t: 48.00
Features\t: fp asimd aes crc32 atomics asimdhp asimddp sve
CPU implementer\t: 0x41
"""


def level(number: int) -> frozenset[str]:
    found = cpu_features("x86_64", f"x86-64-v{number}" if number > 1 else "x86-64")
    assert found is not None
    return found


def test_features_in_x86_text_are_the_first_cpus_in_llvm_names() -> None:
    assert host.features_in(X86) == {
        "fpu",
        "sse3",
        "ssse3",
        "cx16",
        "sse4.1",
        "sse4.2",
        "popcnt",
        "sahf",
        "avx",
        "bmi",
        "lzcnt",
        "avx512vnni",
        "sha",
    }


def test_features_in_arm_text_are_in_llvm_names() -> None:
    expected = {"fp-armv8", "neon", "aes", "crc", "lse", "fullfp16", "dotprod", "sve"}
    assert host.features_in(ARM) == expected


@pytest.mark.parametrize("text", ["", "processor: 0\n", "flags\n", "flags:\n", "no colon"])
def test_features_in_text_without_any_are_none(text: str) -> None:
    assert host.features_in(text) == frozenset()


def test_level_of_features_is_the_highest_without_a_gap() -> None:
    assert host.level_of(frozenset()) == "x86-64"
    for number in (2, 3, 4):
        assert host.level_of(level(number) | {"other"}) == f"x86-64-v{number}"
    assert host.level_of(level(4) - {"avx2"}) == "x86-64-v2"
    assert host.level_of(level(4) - {"cx16"}) == "x86-64"
    assert host.level_of(host.features_in(X86)) == "x86-64-v2"


def test_level_features_grow_and_others_are_unknown() -> None:
    assert cpu_features("x86_64", "generic") == frozenset() == level(1)
    assert level(1) < level(2) < level(3) < level(4)
    assert {"avx2", "fma", "lzcnt", "sse4.2"} <= level(3)
    assert cpu_features("x86_64", "cortex-a72") is None


@pytest.mark.parametrize(
    ("name", "canonical"),
    [("AMD64", "x86_64"), ("arm64", "aarch64"), ("ARM64", "aarch64"), ("riscv64", "riscv64")],
)
def test_canonical_arch_is_the_name_llvm_uses(name: str, canonical: str) -> None:
    assert host.canonical_arch(name) == canonical


@pytest.mark.parametrize(
    ("system", "machine", "triple"),
    [
        ("linux", "x86_64", "x86_64-linux-gnu"),
        ("linux", "arm64", "aarch64-linux-gnu"),
        ("darwin", "arm64", "aarch64-apple-darwin"),
    ],
)
def test_host_triple_follows_the_system(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, triple: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert host.host_triple() == triple


def test_host_cpu_is_a_level_on_x86_and_generic_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "host_cpu_features", lambda: level(3))
    monkeypatch.setattr(platform, "machine", lambda: "amd64")
    assert host.host_cpu() == "x86-64-v3"
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert host.host_cpu() == "generic"
