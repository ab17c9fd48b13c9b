"""Code for each named x86-64 CPU: it runs here if this machine has the features, else the lacking ones are named."""

from __future__ import annotations

import numpy as np
import pytest

import farm
from farm import te
from farm.artifact import assemble
from farm.codegen import compile_function
from farm.errors import NoVariant
from farm.ir import interpret, serialise
from farm.runtime.local import load_local, local_capabilities
from farm.target import Target
from farm.target.cpus import CPUS
from farm.target.host import X86_LEVELS

OWN = Target.parse("llvm")
NAMES = [*(level for level, _ in X86_LEVELS), *CPUS["x86_64"], "generic"]


def function():
    x = te.placeholder((37,), "float32", name="x")
    y = te.compute((37,), lambda i: te.floor(x[i] * 3.0 + 0.5) - x[36 - i], name="y")
    return te.function("mixed", [x, y])


@pytest.mark.skipif(OWN.family != "llvm/x86_64", reason="this machine is no x86-64")
@pytest.mark.parametrize("cpu", NAMES)
def test_code_for_a_named_cpu_runs_or_names_what_is_lacking(cpu):
    target = Target.parse(f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}")
    artifact = assemble(OWN, [compile_function(serialise(function()), "device", target)])
    lacking = sorted(set(target.requires) - local_capabilities().provides)
    if lacking:
        with pytest.raises(NoVariant) as error:
            load_local(artifact)
        assert f"lacks {', '.join(lacking)}" in error.value.message
        return
    x = np.linspace(-9, 9, 37, dtype=np.float32)
    with farm.load(artifact) as module:
        (y,) = module.call("mixed", [x]).outputs
    assert y.tobytes() == interpret(function(), [x])[0].tobytes()
