"""The public symbol of ABI 1: every status code, and the host stub of an accelerator's function."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest

import farm.te as te
from farm.artifact.abi import (
    ALLOWED_IMPORTS,
    ReturnKind,
    context_symbol,
    encode_return,
    launch_symbol,
)
from farm.codegen import compile_function
from farm.errors import InvalidFunction, InvalidTarget
from farm.ir import serialise
from farm.runtime.dlpack import DLTensor, PackedFunction
from farm.target import Target

HERE = Target.parse("llvm")
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))


def add(**options):
    a = te.placeholder((2, 1, 3), "float32", name="a")
    b = te.placeholder((), "int64", name="b")
    c = te.compute((2, 1, 3), lambda i, j, k: a[i, j, k] + b[()].astype("float32"), name="c")
    return te.function("add", [a, b, c], **options)


@pytest.fixture(scope="module")
def link():
    """Link one object and return a function from symbol to address."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    jit = llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)
    libraries = []

    def link(data, *symbols):
        builder = llvm.JITLibraryBuilder().add_object_img(data)
        process = ctypes.CDLL(None)
        for name in ALLOWED_IMPORTS:
            builder.import_symbol(name, ctypes.cast(getattr(process, name), ctypes.c_void_p).value)
        for symbol in symbols:
            builder.export_symbol(symbol)
        library = builder.link(jit, f"library{len(libraries)}")
        libraries.append(library)
        return library

    yield link
    for library in libraries:
        library.close()
    jit.close()


@pytest.fixture(scope="module")
def device(link):
    built = compile_function(serialise(add()), "device", HERE)
    return PackedFunction(link(built.data, "add")["add"])


@pytest.fixture(scope="module")
def host(link):
    built = compile_function(serialise(add()), "host", HERE)
    return link(built.data, "add", launch_symbol("add"), context_symbol("add"))


class Arguments:
    """Three arguments that fit; tests change one thing."""

    def __init__(self):
        self.a = np.arange(6, dtype=np.float32).reshape(2, 1, 3)
        self.b, self.c = np.array(10, np.int64), np.zeros((2, 1, 3), np.float32)
        self.shapes = [(ctypes.c_int64 * 3)(2, 1, 3), None, (ctypes.c_int64 * 3)(2, 1, 3)]
        self.tensors = []
        for array, code, shape in zip(
            (self.a, self.b, self.c), (2, 0, 2), self.shapes, strict=True
        ):
            tensor = DLTensor(data=array.ctypes.data, ndim=array.ndim, shape=shape, byte_offset=0)
            tensor.device.device_type = 1
            tensor.dtype.code, tensor.dtype.lanes = code, 1
            tensor.dtype.bits = array.itemsize * 8
            self.tensors.append(tensor)
        self.pointers = [ctypes.pointer(tensor) for tensor in self.tensors]

    def call(self, function, count=3):
        list_type = ctypes.POINTER(DLTensor) * 3
        return function(list_type(*self.pointers), count)


def strides(*values):
    return (ctypes.c_int64 * len(values))(*values)


def test_stub_of_fitting_arguments_returns_zero_and_the_result(device):
    arguments = Arguments()
    assert arguments.call(device) == 0
    assert np.array_equal(arguments.c, arguments.a + 10)


@pytest.mark.parametrize("count", [-1, 0, 2, 4])
def test_stub_of_wrong_count_touches_nothing(count, device):
    assert device(None, count) == encode_return(ReturnKind.WRONG_COUNT, 0)


def test_stub_of_null_list_returns_null_pointer(device):
    assert device(None, 3) == encode_return(ReturnKind.NULL_POINTER, 0)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_stub_of_null_tensor_returns_null_pointer(index, device):
    arguments = Arguments()
    arguments.pointers[index] = ctypes.POINTER(DLTensor)()
    assert arguments.call(device) == encode_return(ReturnKind.NULL_POINTER, index)


CHANGES = {
    "data": (ReturnKind.NULL_POINTER, lambda t: setattr(t, "data", None)),
    "shape": (ReturnKind.NULL_POINTER, lambda t: setattr(t, "shape", None)),
    "ndim": (ReturnKind.WRONG_NDIM, lambda t: setattr(t, "ndim", t.ndim + 1)),
    "code": (ReturnKind.WRONG_DTYPE, lambda t: setattr(t.dtype, "code", 1)),
    "bits": (ReturnKind.WRONG_DTYPE, lambda t: setattr(t.dtype, "bits", 16)),
    "lanes": (ReturnKind.WRONG_DTYPE, lambda t: setattr(t.dtype, "lanes", 2)),
    "first extent": (ReturnKind.WRONG_SHAPE, lambda t: t.shape.__setitem__(0, 3)),
    "last extent": (ReturnKind.WRONG_SHAPE, lambda t: t.shape.__setitem__(2, 4)),
    "strides": (ReturnKind.NOT_CONTIGUOUS, lambda t: setattr(t, "strides", strides(6, 3, 2))),
    "outer stride": (ReturnKind.NOT_CONTIGUOUS, lambda t: setattr(t, "strides", strides(4, 3, 1))),
    "address": (ReturnKind.MISALIGNED, lambda t: setattr(t, "data", t.data + 2)),
    "offset": (ReturnKind.MISALIGNED, lambda t: setattr(t, "byte_offset", 1)),
}


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("change", list(CHANGES))
def test_stub_of_argument_that_does_not_fit_says_why_and_which(change, index, device, host):
    kind, apply = CHANGES[change]
    for function in (device, PackedFunction(host["add"])):
        arguments = Arguments()
        apply(arguments.tensors[index])
        assert arguments.call(function) == encode_return(kind, index)
        assert not arguments.c.any()


def test_stub_of_scalar_with_extents_returns_wrong_ndim(device):
    arguments = Arguments()
    arguments.tensors[1].ndim = 1
    assert arguments.call(device) == encode_return(ReturnKind.WRONG_NDIM, 1)


def test_stub_accepts_dense_strides_and_ignores_those_of_extent_one(device):
    arguments = Arguments()
    for index in (0, 2):
        arguments.tensors[index].strides = strides(3, 77, 1)
    assert arguments.call(device) == 0
    assert np.array_equal(arguments.c, arguments.a + 10)


def test_stub_adds_the_byte_offset(device):
    arguments = Arguments()
    arguments.tensors[0].data -= 16
    arguments.tensors[0].byte_offset = 16
    assert arguments.call(device) == 0
    assert np.array_equal(arguments.c, arguments.a + 10)


def test_stub_checks_the_declared_alignment(link):
    from farm.ir import Buffer, DType, Function, Param, Role
    from farm.ir.expr import Load, Var
    from farm.ir.stmt import For, Store

    x, y = (Buffer(name, DType.INT8, (4,), 64) for name in "xy")
    body = For(Var("i"), 4, Store(y, (Var("i"),), Load(x, (Var("i"),))))
    copy = Function("copy", (Param(x, Role.INPUT), Param(y, Role.OUTPUT)), body)
    built = compile_function(serialise(copy), "device", HERE)
    function = PackedFunction(link(built.data, "copy")["copy"])
    memory = np.zeros(256, np.int8)
    start = memory.ctypes.data + -memory.ctypes.data % 64
    shape = (ctypes.c_int64 * 1)(4)
    for offset, expected in ((0, 0), (32, encode_return(ReturnKind.MISALIGNED, 1))):
        tensors = [DLTensor(data=at, ndim=1, shape=shape) for at in (start, start + 64 + offset)]
        for tensor in tensors:
            tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = 0, 8, 1
        pointers = (ctypes.POINTER(DLTensor) * 2)(*map(ctypes.pointer, tensors))
        assert function(pointers, 2) == expected


def test_host_stub_without_launcher_returns_no_device(host):
    ctypes.c_void_p.from_address(host[launch_symbol("add")]).value = None
    arguments = Arguments()
    assert arguments.call(PackedFunction(host["add"])) == ReturnKind.NO_DEVICE


def test_host_stub_passes_context_and_data_pointers_to_the_launcher(host):
    seen = []

    def launch(context, buffers):
        seen.append((context, [buffers[index] for index in range(3)]))
        return 0

    callback = LAUNCH(launch)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    ctypes.c_void_p.from_address(host[launch_symbol("add")]).value = address
    ctypes.c_void_p.from_address(host[context_symbol("add")]).value = 0x1234
    arguments = Arguments()
    arguments.tensors[0].data -= 8
    arguments.tensors[0].byte_offset = 8
    assert arguments.call(PackedFunction(host["add"])) == 0
    pointers = [array.ctypes.data for array in (arguments.a, arguments.b, arguments.c)]
    assert seen == [(0x1234, pointers)]


@pytest.mark.parametrize("result", [1, -1, 0x500])
def test_host_stub_of_failing_launcher_returns_launch_failed(result, host):
    callback = LAUNCH(lambda context, buffers: result)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    ctypes.c_void_p.from_address(host[launch_symbol("add")]).value = address
    assert Arguments().call(PackedFunction(host["add"])) == ReturnKind.LAUNCH_FAILED


def test_host_stub_of_private_function_is_refused():
    with pytest.raises(InvalidFunction, match="private"):
        compile_function(serialise(add(private=True)), "host", HERE)


def test_host_stub_for_an_accelerator_is_refused():
    with pytest.raises(InvalidTarget, match="runs no host code"):
        compile_function(serialise(add()), "host", Target.parse("ea"))
