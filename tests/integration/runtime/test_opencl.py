"""OpenCL C built by a real device: refusals of its compiler, faults, buffers, choice of the device."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest

from farm import te
from farm.artifact import assemble
from farm.codegen import compile_function
from farm.errors import ArtifactError, BuildFailed, InvalidInput, NoVariant
from farm.ir import interpret, serialise
from farm.runtime.local import local_capabilities
from farm.runtime.native import native_loader
from farm.target import Target

pytest.importorskip("pyopencl", reason="pyopencl is missing: install kernel-farm[opencl]")
if shutil.which("ld") is None:
    pytest.skip("PoCL needs ld: install the Debian package binutils", allow_module_level=True)

HOST = Target.parse("llvm")
X = np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)


def load(function, change=lambda module: module, *extensions, device=""):
    kinds = (("device", Target.parse("opencl")), ("host", HOST))
    device_module, host = (compile_function(serialise(function), *kind) for kind in kinds)
    here = local_capabilities(accelerators=False)
    provides = {*here.provides, "opencl-c:1.2", *extensions}
    loader = native_loader(("opencl", *here.targets), provides, device)
    return loader.load(assemble(HOST, [change(device_module), host]))


def scaled(name="scaled", dtype="float32"):
    """Two phases with a buffer between them, one reduction."""
    x = te.placeholder((4, 8), dtype, name="x")
    k = te.reduce_axis(8, "k")
    most = te.compute((4,), lambda i: te.max(x[i, k], k), name="most")
    y = te.compute((4, 8), lambda i, j: x[i, j] / most[i], name="y")
    return te.function(name, [x, y])


@pytest.fixture(scope="module")
def module():
    with load(scaled()) as loaded:
        yield loaded


def test_kernels_of_several_phases_equal_the_interpreter_at_each_call(module):
    for inputs in (X, X[::-1].copy(), X * 3):
        result = module.call("scaled", [inputs], repeat=1)
        assert result.outputs[0].tobytes() == interpret(scaled(), [inputs])[0].tobytes()


def replaced(old, new):
    return lambda module: dataclasses.replace(module, data=module.data.replace(old, new))


def test_source_that_the_device_refuses_is_a_build_error_with_its_log():
    with pytest.raises(BuildFailed, match="undeclared identifier 'nonsense'") as error:
        load(
            scaled(),
            replaced(b"FP_CONTRACT OFF\n", b"FP_CONTRACT OFF\nint f() { return nonsense; }\n"),
        )
    assert error.value.details["device"]
    assert "nonsense" in error.value.details["log"]


def test_head_that_names_no_kernel_of_the_source_is_refused():
    with pytest.raises(ArtifactError, match="no kernel 'farm_kernel_9' in its source"):
        load(scaled(), replaced(b'["farm_kernel_0",', b'["farm_kernel_9",'))


def test_extension_that_the_device_lacks_is_named():
    with pytest.raises(NoVariant, match="lacks opencl-extension:cl_khr_fp64"):
        load(scaled(dtype="float64"))


def test_device_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(InvalidInput, match=r"no device '9\.0'; there is 0\.0"):
        load(scaled(), device="9.0")
