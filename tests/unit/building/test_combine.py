"""Host code that is put off and compiled later."""

from __future__ import annotations

import numpy as np
import pytest

import farm
from farm.errors import DuplicateSymbol, HostMismatch, InvalidInput

ARM = "llvm -mtriple=aarch64-linux-gnu"


def test_host_code_that_is_put_off_gives_the_bytes_of_one_build(make):
    request = {"ea": [make("f"), make("g", 2)], "llvm": [make("f"), make("h", 3)]}
    whole = farm.build(request, variants=True)
    functions, modules = farm.build(request, variants=True, delay_host_codegen=True)
    assert [function.name for function in functions] == ["f", "g"]
    assert {section.kind for section in modules.sections} == {"device"}
    later = farm.combine(functions, farm.Artifact.from_bytes(modules.to_bytes()))
    assert later.digest == whole.digest
    with farm.load(later) as module:
        (out,) = module.call("g", [np.arange(8, dtype=np.int32)]).outputs
    np.testing.assert_array_equal(out, np.arange(2, 10))


def test_several_builds_share_one_host_that_is_named_last(make):
    whole = farm.build({"ea": [make("f"), make("g")], ARM: [make("h")]}, target_host=ARM)
    builds = [
        farm.build(request, delay_host_codegen=True)
        for request in ({"ea": make("f")}, {"ea": [make("f"), make("g")]}, {ARM: make("h")})
    ]
    functions = [function for found, _ in builds for function in found]
    later = farm.combine(functions, [modules for _, modules in builds], ARM)
    assert later.digest == whole.digest


def test_combine_of_cpu_code_alone_has_nothing_to_compile(make):
    functions, modules = farm.build({"llvm": make("f")}, delay_host_codegen=True)
    assert functions == ()
    assert farm.combine(functions, modules).digest == farm.build({"llvm": make("f")}).digest


def test_combine_adds_to_a_whole_artifact_of_the_same_host(make):
    functions, modules = farm.build({"ea": make("g")}, delay_host_codegen=True)
    both = farm.combine(functions, [modules, farm.build({"ea": make("f")})])
    assert both.digest == farm.build({"ea": [make("f"), make("g")]}).digest


def test_combine_refuses_what_does_not_belong_together(make):
    functions, modules = farm.build({"ea": make("f")}, delay_host_codegen=True)
    _, other = farm.build({"ea": make("f", 2)}, delay_host_codegen=True)
    for given, parts, error, words in (
        (functions, [], InvalidInput, "no device modules"),
        ([], modules, InvalidInput, "no host function f, which is built for ea"),
        ([*functions, make("g")], modules, InvalidInput, "host function g is in no device module"),
        (["f"], modules, InvalidInput, "'f' is no function"),
        ([make("f", size=9)], modules, DuplicateSymbol, "f is .*9.* for the host but .*8"),
        ([*functions, make("f", size=9)], modules, DuplicateSymbol, "two functions f"),
        (functions, [modules, other], DuplicateSymbol, "different code for f"),
    ):
        with pytest.raises(error, match=words):
            farm.combine(given, parts)


def test_combine_refuses_hosts_that_differ(make):
    functions, here = farm.build({"ea": make("f")}, delay_host_codegen=True)
    more, there = farm.build({"ea": make("g")}, ARM, delay_host_codegen=True)
    with pytest.raises(HostMismatch, match=r"different hosts .*; pass target_host"):
        farm.combine([*functions, *more], [here, there])
    whole = farm.build({"ea": make("g")}, ARM)
    with pytest.raises(HostMismatch, match=r"g has host code for .* already"):
        farm.combine(functions, [here, whole], "llvm")
