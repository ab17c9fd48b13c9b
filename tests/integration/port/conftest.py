"""A farm whose accelerators are nothing but installed packages: good ones, and some that go wrong."""

from __future__ import annotations

import pytest
from plug_ins import EXAMPLES, GOOD, find_from, install, write_plug_in

from farm.target import Target
from farm.testing import EmbeddedFarm
from farm.testing.agents import AgentPlan

BRITTLE = GOOD.replace(
    'return b"double"',
    """word = function.name.partition("_")[0]
    if word == "raise":
        raise ValueError("no such luck")
    if word == "abort":
        import os
        os.abort()
    return word.encode()""",
).replace(
    "arrays[-1][...] = arrays[0] * 2",
    """if program == b"runraise":
            raise ValueError("no such luck")
        if program == b"runabort":
            import os
            os.abort()
        while program == b"runloop":
            pass
        arrays[-1][...] = arrays[0] * 2""",
)
"""Goes wrong as the name of the function says; else it doubles."""

EXAMPLES_USED = ("library", "marlann", "target", "tensorize")
KINDS = ("blas", "brittle", "dotcore", "marlann", "tile8")


@pytest.fixture(scope="module")
def port_farm(tmp_path_factory):
    """A farm that builds for this CPU and the packages' accelerators, and has a device of each."""
    folder = tmp_path_factory.mktemp("packages")
    install(folder, *(EXAMPLES / name for name in EXAMPLES_USED))
    write_plug_in(folder, "brittle", BRITTLE)
    write_plug_in(folder, "mute", "raise ValueError('nothing to say')")
    plans = (
        AgentPlan("makers", (Target.parse("llvm").family, *KINDS, "mute"), ("cpu",), slots=2),
        AgentPlan("ports", (), ("tile8:tile8-small@small", "mute", *KINDS)),
    )
    with pytest.MonkeyPatch.context() as patch:
        find_from(patch, folder)
        with EmbeddedFarm("processes", plans=plans) as embedded:
            yield embedded
