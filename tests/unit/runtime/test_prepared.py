"""Functions on arrays between guards."""

from __future__ import annotations

import candidates
import numpy as np
import pytest

import farm
from farm.errors import InvalidArguments, InvalidInput, NotFound
from farm.ir.declaration import functions_of
from farm.runtime.local import load_local
from farm.runtime.prepared import CalledFunction

X = np.arange(candidates.COUNT, dtype=np.float32).reshape(candidates.SHAPE)


@pytest.fixture(scope="module")
def modules():
    """One loaded module for each of the candidates that end."""
    names = ("right", "before", "behind", "input", "last", "once")
    made = {name: candidates.artifact(name, candidates.BODIES[name]) for name in names}
    loaded = {name: load_local(artifact) for name, artifact in made.items()}
    yield loaded
    for module in loaded.values():
        module.close()


@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("number", [1, 2, 7])
def test_prepared_function_leaves_what_a_call_gives(modules, sets, number):
    prepared = modules["right"].prepare("right", sets)
    prepared.fill([X])
    prepared.poison(0xFF)
    lap = prepared.lap(number)
    assert lap.wall_ns > 0
    assert lap.cpu_ns > 0
    (output,) = prepared.outputs()
    np.testing.assert_array_equal(output, 2 * X)
    assert prepared.damage() == ""


@pytest.mark.parametrize(
    ("name", "what"),
    [("before", "wrote before"), ("behind", "wrote behind"), ("input", "changed its input x")],
)
@pytest.mark.parametrize("sets", [1, 2])
def test_what_is_no_output_and_was_changed_is_told(modules, name, what, sets):
    prepared = modules[name].prepare(name, sets)
    prepared.fill([X])
    prepared.lap(1)
    assert prepared.damage().startswith(what)


def test_element_that_is_never_written_keeps_its_poison(modules):
    prepared = modules["last"].prepare("last")
    prepared.fill([X])
    prepared.poison(0xFF)
    prepared.lap(1)
    (output,) = prepared.outputs()
    assert np.isnan(output[-1, -1])
    assert not np.isnan(output[:-1]).any()


def test_function_that_works_only_at_first_is_seen_after_poison(modules):
    prepared = modules["once"].prepare("once")
    prepared.fill([X])
    prepared.lap(100)
    prepared.poison(0xFF)
    prepared.lap(1)
    assert np.isnan(prepared.outputs()[0]).all()


def test_inouts_are_put_back_before_each_call():
    text = b"""; farm: more(x: int32[4] inout)
define void @more(ptr %x) {
  %one = load <4 x i32>, ptr %x, align 4
  %two = add <4 x i32> %one, <i32 1, i32 1, i32 1, i32 1>
  store <4 x i32> %two, ptr %x, align 4
  ret void
}
"""
    artifact = farm.build({"llvm": functions_of("more.ll", text)})
    with load_local(artifact) as module:
        prepared = module.prepare("more", 2)
        prepared.fill([np.arange(4, dtype=np.int32)])
        prepared.lap(5)
        assert prepared.outputs()[0].tolist() == [1, 2, 3, 4]
        assert prepared.damage() == ""


def test_arrays_that_do_not_fit_are_refused(modules):
    prepared = modules["right"].prepare("right")
    with pytest.raises(InvalidArguments):
        prepared.fill([X[:3]])
    with pytest.raises(NotFound):
        modules["right"].prepare("absent")
    with pytest.raises(InvalidInput, match="sets"):
        modules["right"].prepare("right", 0)


def test_any_runtime_can_be_prepared_through_its_calls(modules):
    module = modules["right"]
    prepared = CalledFunction(module, module.function("right"))
    prepared.fill([X])
    prepared.poison(0xFF)
    lap = prepared.lap(3)
    assert (lap.wall_ns > 0, lap.cpu_ns) == (True, None)
    np.testing.assert_array_equal(prepared.outputs()[0], 2 * X)
    assert prepared.damage() == ""
