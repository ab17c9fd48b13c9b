"""Building on this machine."""

from __future__ import annotations

import numpy as np
import pytest

import farm
from farm import te
from farm.building import ItemState
from farm.errors import BuildFailed, FarmError, NotFound, NoVariant

ARM = "llvm -mtriple=aarch64-linux-gnu"


def _float_on_ea():
    x = te.placeholder((4,), "float32", name="x")
    return te.function("float", [x, te.compute((4,), lambda i: x[i] + 1.0, name="y")])


def test_build_for_three_targets_gives_one_artifact_that_runs_here(make):
    artifact = farm.build(
        {"ea": [make("f")], "llvm": [make("f"), make("g", 2)], ARM: [make("g", 2)]}, variants=True
    )
    assert sorted((s.symbol, s.kind, s.target.split("=")[0]) for s in artifact.sections) == [
        ("f", "device", "ea -config"),
        ("f", "device", "llvm -mtriple"),
        ("f", "host", "llvm -mtriple"),
        ("g", "device", "llvm -mtriple"),
        ("g", "device", "llvm -mtriple"),
    ]
    with farm.load(artifact) as module:
        assert module.functions["f"].target == "ea -config=ea16"
        (out,) = module.call("f", [np.arange(8, dtype=np.int32)]).outputs
    np.testing.assert_array_equal(out, np.arange(1, 9))


def test_one_stub_calls_whichever_accelerator_a_device_has(make):
    artifact = farm.build(
        {"ea -config=ea8": make("f"), "ea": make("f"), "llvm": make("f")}, variants=True
    )
    kinds = sorted((s.symbol, s.kind, s.target.split(" -mtriple")[0]) for s in artifact.sections)
    assert kinds == [
        ("f", "device", "ea -config=ea16"),
        ("f", "device", "ea -config=ea8"),
        ("f", "device", "llvm"),
        ("f", "host", "llvm"),
    ]
    with farm.load(artifact) as module:
        (out,) = module.call("f", [np.arange(8, dtype=np.int32)]).outputs
    np.testing.assert_array_equal(out, np.arange(1, 9))


def test_build_in_another_order_gives_the_same_digest(make):
    one = farm.build({"llvm": [make("f"), make("g")], ARM: [make("h")]})
    other = farm.build([(ARM, [make("h")]), ("llvm", [make("g")]), ("llvm", [make("f")])])
    assert one.digest == other.digest


def test_build_with_a_failure_reports_it_and_what_was_built(make):
    events: list[tuple[str, ItemState]] = []
    with pytest.raises(BuildFailed) as caught:
        farm.build(
            {"ea": [_float_on_ea()], "llvm": [make("f")]},
            keep_going=True,
            progress=lambda outcome: events.append((outcome.item.function.name, outcome.state)),
        )
    message = str(caught.value)
    assert message.startswith("build: 1 of 3 items failed (2 built)")
    assert "float for ea -config=ea16: function float on ea: " in message
    assert caught.value.details == {"ea -config=ea16/float": "UNSUPPORTED_FUNCTION"}
    assert events.count(("float", ItemState.FAILED)) == 1
    assert events.count(("f", ItemState.DONE)) == 1


def test_build_without_keep_going_stops_at_the_first_failure(make):
    events = []
    with pytest.raises(BuildFailed, match=r"\(0 built\)"):
        farm.build({"ea": [_float_on_ea()], "llvm": [make("f")]}, progress=events.append)
    assert [outcome.state for outcome in events] == [ItemState.BUILDING, ItemState.FAILED]


def test_load_of_an_artifact_for_another_machine_lists_what_it_has(make):
    with pytest.raises(NoVariant, match="aarch64") as caught:
        farm.load(farm.build({ARM: [make("f")]}))
    assert isinstance(caught.value, FarmError)
    assert caught.value.exit_code == 2


def test_private_helper_is_linked_to_its_callers_and_not_visible(make, make_caller):
    artifact = farm.build(
        {"llvm": [make("helper", 5, private=True), make("f", 1), make_caller("all", "helper", "f")]}
    )
    with farm.load(artifact) as module:
        assert set(module.functions) == {"all", "f"}
        (out,) = module.call("all", [np.zeros(8, np.int32)]).outputs
    assert out.tolist() == [6] * 8


def test_private_helpers_of_two_cpu_levels_do_not_meet(make, make_caller):
    baseline = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64"
    newer = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v2"
    request = {
        baseline: [make("helper", 5, private=True), make_caller("a", "helper")],
        newer: [make("helper", 7, private=True), make_caller("b", "helper")],
    }
    with farm.load(farm.build(request)) as module:
        results = [module.call(name, [np.zeros(8, np.int32)]).outputs[0][0] for name in "ab"]
    assert results == [5, 7]


def test_load_leaves_out_what_has_no_slice_for_this_machine(make):
    with farm.load(farm.build({"llvm": [make("f")], ARM: [make("g")]})) as module:
        assert set(module.functions) == {"f"}
        with pytest.raises(NotFound, match="g: no such function, or no slice"):
            module.call("g", [np.zeros(8, np.int32)])
