"""The rules of a build request."""

from __future__ import annotations

import itertools

import pytest

from farm import te
from farm.building import plan
from farm.errors import (
    DuplicateSymbol,
    InvalidFunction,
    InvalidInput,
    InvalidTarget,
    PlacementConflict,
    UndefinedReference,
    UnsupportedFunction,
)
from farm.target import Target

NATIVE = Target.parse("llvm")
ARM = Target.parse("llvm -mtriple=aarch64-linux-gnu")
EA = Target.parse("ea")


def shape(built):
    return [(item.kind, str(item.target), item.function.name) for item in built.items]


def test_plan_in_every_form_of_request_is_the_same(make):
    f, g = make("f"), make("g", 2)
    forms = [
        {"ea": [f], "llvm": [g]},
        {"llvm": g, "ea": f},
        {EA: [f], NATIVE: [g]},
        [("llvm", [g]), ("ea", [f])],
        [("ea", f), ("llvm", g)],
        [f.on("ea"), g],
        {"ea": [f.on("ea")], "llvm": [g.on("llvm")]},
    ]
    expected = [("device", str(EA), "f"), ("host", str(NATIVE), "f"), ("device", str(NATIVE), "g")]
    for form in forms:
        assert shape(plan(form)) == expected
        assert plan(form).target_host == NATIVE


def test_plan_of_one_function_and_target_is_for_this_machine(make):
    assert shape(plan(make())) == [("device", str(NATIVE), "f")]


def test_plan_does_not_depend_on_order(make):
    functions = {EA: [make("a"), make("b")], ARM: [make("c")], NATIVE: [make("d"), make("e")]}
    plans = {
        tuple(shape(plan({key: list(reversed(functions[key])) for key in order})))
        for order in itertools.permutations(functions)
    }
    assert len(plans) == 1


def test_plan_with_one_target_written_in_two_ways_merges_them(make):
    request = {
        "llvm -mtriple=arm64-unknown-linux-gnu": [make("f")],
        "llvm -mcpu=generic -mtriple=aarch64-linux-gnu": [make("g")],
    }
    assert shape(plan(request)) == [("device", str(ARM), "f"), ("device", str(ARM), "g")]


def test_plan_with_one_function_listed_twice_builds_it_once(make):
    assert shape(plan({"llvm": [make(), make()]})) == [("device", str(NATIVE), "f")]


def test_plan_with_a_placement_that_conflicts_is_refused(make):
    with pytest.raises(
        PlacementConflict, match=r"function f: placed on ea .* but listed under llvm"
    ):
        plan({"llvm": [make().on("ea")]})


def test_plan_with_two_functions_of_one_name_is_refused(make):
    with pytest.raises(DuplicateSymbol, match="function f: two different ones for llvm"):
        plan({"llvm": [make(amount=1), make(amount=2)]})


def test_plan_with_one_name_on_two_targets_needs_variants(make):
    request = {"llvm": [make()], ARM: [make()]}
    with pytest.raises(DuplicateSymbol, match=r"function f: .*variants=True"):
        plan(request)
    assert len(plan(request, variants=True).items) == 2


def test_plan_with_variants_of_other_signatures_is_refused(make):
    with pytest.raises(DuplicateSymbol, match="variants have one signature"):
        plan({"llvm": [make(size=8)], ARM: [make(size=9)]}, variants=True)


def test_plan_with_private_functions_of_one_name_on_two_targets_is_accepted(make, make_caller):
    request = {
        "llvm": [make("helper", private=True), make_caller("a", "helper")],
        ARM: [make("helper", 2, private=True), make_caller("b", "helper")],
    }
    assert len(plan(request).items) == 4


@pytest.mark.parametrize("request_", [{}, [], {"llvm": []}], ids=str)
def test_plan_of_nothing_is_refused(request_):
    with pytest.raises(InvalidInput, match="no functions"):
        plan(request_)


def test_plan_of_something_else_is_refused():
    with pytest.raises(InvalidInput, match="'f' is no function"):
        plan({"llvm": ["f"]})


def test_plan_with_an_unknown_target_is_refused(make):
    with pytest.raises(InvalidTarget, match="unknown kind"):
        plan({"gpu": [make()]})


def test_plan_host_is_what_was_passed_else_what_targets_name_else_this_machine(make):
    arm_host = Target.parse("ea", host="llvm -mtriple=aarch64-linux-gnu")
    assert plan({"ea": make()}).target_host == NATIVE
    assert plan({arm_host: make()}).target_host == ARM
    assert plan({arm_host: make()}, "llvm").target_host == NATIVE
    assert [item.target for item in plan({arm_host: make()}).items if item.kind == "host"] == [ARM]


def test_plan_with_targets_that_name_different_hosts_is_refused(make):
    request = [
        (Target.parse("ea", host="llvm"), make("f")),
        (Target.parse("ea -config=ea8", host="llvm -mtriple=aarch64-linux-gnu"), make("g")),
    ]
    with pytest.raises(PlacementConflict, match="different hosts"):
        plan(request)


def test_plan_with_an_accelerator_as_host_is_refused(make):
    with pytest.raises(InvalidTarget, match="is an accelerator"):
        plan({"llvm": make()}, "ea")


def test_call_to_an_accelerator_from_the_host_is_accepted(make, make_caller):
    request = {"ea": [make("layer")], "llvm": [make_caller("network", "layer", "layer")]}
    assert len(plan(request).items) == 3


def test_call_to_nothing_names_all_callers(make, make_caller):
    request = {"llvm": [make_caller("a", "gone"), make_caller("b", "gone"), make("f")]}
    with pytest.raises(
        UndefinedReference, match=r"no function gone \(for llvm .*, called by a, b\)"
    ):
        plan(request)


def test_call_to_a_function_of_another_cpu_is_refused(make, make_caller):
    with pytest.raises(UndefinedReference, match="no function f"):
        plan({"llvm": [make_caller("a", "f")], ARM: [make("f")]})


def test_call_to_an_accelerator_from_another_cpu_than_the_host_is_refused(make, make_caller):
    request = {"ea": [make("layer")], ARM: [make_caller("network", "layer")]}
    with pytest.raises(UndefinedReference, match="no function layer"):
        plan(request, "llvm -mtriple=riscv64-linux-gnu")
    assert plan(request, ARM).target_host == ARM


def test_call_from_an_accelerator_is_refused(make, make_caller):
    with pytest.raises(UndefinedReference, match="functions of an accelerator cannot call"):
        plan({"ea": [make_caller("a", "f"), make("f")]})


def test_calls_in_a_circle_are_shown(make_caller):
    request = {"llvm": [make_caller("a", "b"), make_caller("b", "c"), make_caller("c", "b")]}
    with pytest.raises(UndefinedReference, match="b -> c -> b"):
        plan(request)


def test_call_with_buffers_of_another_shape_is_refused(make, make_caller):
    with pytest.raises(InvalidFunction, match="function a: call f passes"):
        plan({"llvm": [make_caller("a", "f", size=9), make("f")]})


def test_call_that_would_write_an_input_is_refused(make):
    x = te.placeholder((8,), "int32", name="x")
    y = te.placeholder((8,), "int32", name="y")
    caller = te.sequence("a", [x], [y], [te.call("f", x, y), te.call("f", y, x)])
    with pytest.raises(InvalidFunction, match="call f would write input x"):
        plan({"llvm": [caller, make("f")]})


def test_plan_with_a_private_function_on_an_accelerator_is_refused(make):
    with pytest.raises(UnsupportedFunction, match="function f: private on ea"):
        plan({"ea": make(private=True)})
