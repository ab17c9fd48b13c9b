"""Jobs and leases go only to devices that run what was built, and are refused at once if there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from farm_tracker.state.demand import Variant, demand_of
from farm_tracker.state.why import explain

from farm.errors import NobodyCanServe, NoVariant
from farm.target import Selector

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"
ARM = "llvm -mtriple=aarch64-linux-gnu -mcpu=generic"
FOR_X86 = Variant(X86, "llvm/x86_64", ("arch:x86_64", "cpu-feature:avx2"))
FOR_ARM = Variant(ARM, "llvm/aarch64", ("arch:aarch64",))
FOR_EA = Variant("ea -config=ea16", "ea", ("ea:16", "arch:x86_64"))


@pytest.fixture
def mixed(world):
    """A farm with two CPUs, one of them of another architecture, both `kind=cpu`."""
    here = ("arch:x86_64", "cpu-feature:sse2", "cpu-feature:avx2")
    devices = (
        world.device("qemu", targets=(ARM,), provides=("arch:aarch64",), kind="cpu"),
        world.device("cpu", targets=(X86,), provides=here, kind="cpu"),
    )
    world.happen(world.agent(devices=devices))
    return world


def test_job_goes_to_the_device_that_runs_what_was_built(mixed):
    mixed.happen(mixed.job("j", "kind=cpu", variants=(FOR_X86,)))
    assert mixed.tries() == [("cpu", "RUNNING")]
    mixed.happen(mixed.job("k", "kind=cpu", variants=(FOR_X86,)))
    assert mixed.run_job("k").state == "QUEUED", "the other device is free and cannot run it"
    assert explain(mixed.state, mixed.run_job("k"), mixed.now).devices.keys() == {"cpu"}
    mixed.happen(mixed.job("l", "kind=cpu", variants=(FOR_X86, FOR_ARM)))
    assert mixed.tries("l") == [("qemu", "RUNNING")]


def test_lease_for_a_run_goes_to_the_device_that_runs_it(mixed):
    mixed.happen(replace(mixed.request("l"), variants=(FOR_X86,)))
    assert mixed.state.devices["cpu"].lease_id == "l"


def test_job_that_no_device_runs_is_refused_with_what_there_is_and_what_is_needed(mixed):
    with pytest.raises(NoVariant) as refused:
        mixed.happen(mixed.job("j", "kind=cpu", variants=(FOR_EA,)))
    assert refused.value.message == (
        "selector 'kind=cpu': none of the 2 devices that match runs what was built (ea -config=ea16): cpu runs "
        "llvm/x86_64; qemu runs llvm/aarch64; build for a target of llvm/aarch64, llvm/x86_64, or choose other "
        "devices"
    )
    assert refused.value.details == {
        "has": "ea -config=ea16",
        "needs": "llvm/aarch64, llvm/x86_64",
    }
    wide = replace(FOR_X86, requires=(*FOR_X86.requires, "cpu-feature:avx512f"))
    with pytest.raises(NoVariant, match="cpu lacks cpu-feature:avx512f; qemu runs llvm/aarch64"):
        mixed.happen(replace(mixed.request("l", "kind=cpu"), variants=(wide, FOR_EA)))
    with pytest.raises(NobodyCanServe, match="nearest"):
        mixed.happen(mixed.job("j", "kind=gpu", variants=(FOR_X86,)))


def test_job_that_waits_for_a_device_gets_one_that_runs_it_later(mixed):
    mixed.happen(mixed.job("j", "kind=cpu", variants=(FOR_EA,), wait_for_device=True))
    why = explain(mixed.state, mixed.run_job(), mixed.now).reason
    assert why.startswith("waits for a device: selector 'kind=cpu': none of the 2 devices")
    provides = ("ea:16", "arch:x86_64")
    upgraded = mixed.device("ea", targets=("ea -config=ea16",), provides=provides, kind="cpu")
    mixed.happen(mixed.agent("other", devices=(upgraded,)))
    assert mixed.tries() == [("ea", "RUNNING")]


def test_device_that_gains_a_feature_is_looked_at_anew(mixed):
    wide = replace(FOR_X86, requires=("cpu-feature:avx512f",))
    mixed.happen(mixed.job("j", "kind=cpu", variants=(wide,), wait_for_device=True))
    cpu = mixed.device("cpu", targets=(X86,), provides=("cpu-feature:*",), kind="cpu")
    qemu = mixed.device("qemu", targets=(ARM,), provides=("arch:aarch64",), kind="cpu")
    mixed.happen(mixed.agent(devices=(qemu, cpu), connected=False))
    assert mixed.tries() == [("cpu", "RUNNING")]


def test_demands_are_equal_if_and_only_if_their_texts_are():
    selectors = [Selector.parse(it) for it in ("", "kind=cpu")]
    variants = [(), (FOR_X86,), (FOR_X86, FOR_ARM), (FOR_ARM,), (replace(FOR_X86, requires=()),)]
    demands = [demand_of(selector, some) for selector in selectors for some in variants]
    assert len({it.text for it in demands}) == len(demands)
    assert demand_of(Selector.parse("kind=cpu"), (FOR_X86,)) is demand_of(selectors[1], (FOR_X86,))
