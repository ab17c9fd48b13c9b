"""Graphs built and run in this process: on the accelerator, with the CPU for the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_examples import Takes

import farm
from farm.building import build
from farm.codegen.ea.lift import HINT
from farm.errors import BuildFailed, InvalidArguments, UnsupportedFunction
from farm.graph import (
    FunctionCode,
    Graph,
    GraphBuild,
    GraphBuilder,
    GraphModule,
    JsonCode,
    TargetBackend,
    build_graph,
    execute,
    partition,
    placement,
)
from farm.graph.lower import fuse, lower
from farm.ir import Function, interpret
from farm.ir.source import Language, Source
from farm.ops.schedules import scheduled
from farm.runtime.local import local_capabilities
from farm.runtime.native import native_loader
from farm.schedule import Schedule
from farm.target import Target

RNG = np.random.default_rng(2)


def whole(*shape: int, dtype: str = "int8", low: int = -90, high: int = 90) -> Any:
    return RNG.integers(low, high, shape).astype(dtype)


def check(graph: Graph | GraphBuild, backends: Any = (), **options: Any) -> Any:
    """Build a graph, if it is not yet, and run it here; assert that it is the oracle's bit for bit."""
    built = graph if isinstance(graph, GraphBuild) else build_graph(graph, backends, **options)
    graph = built.graph
    arrays = [whole(*graph.types[n].shape, dtype=str(graph.types[n].dtype)) for n in graph.inputs]
    with farm.load(built.artifact) as module:
        outputs = GraphModule(built, module)(arrays)
        targets = GraphModule(built, module).targets()
    for found, wanted in zip(outputs, execute(graph, arrays), strict=True):
        assert found.dtype.name == wanted.dtype.name
        np.testing.assert_array_equal(found, wanted)
    return built, targets


@pytest.fixture(scope="module")
def pair_built(pair: Graph) -> GraphBuild:
    return build_graph(pair, [TargetBackend("ea")])


def test_quantised_pair_runs_on_the_accelerator_with_the_cpu_between(
    pair_built: GraphBuild,
) -> None:
    built, targets = check(pair_built)
    assert [p.region.backend for p in built.partition.regions] == ["ea", "cpu", "ea"]
    assert [t.partition(" ")[0] for t in targets.values()] == ["ea", "llvm", "ea"]
    predicted = [p.predicted_s for p in built.partition.regions]
    assert all(seconds is not None and seconds > 0 for seconds in predicted)


def test_same_artifact_runs_where_there_is_no_accelerator(pair_built: GraphBuild) -> None:
    built = pair_built
    x = whole(6, 24)
    here = local_capabilities(accelerators=False)
    with native_loader(here.targets, here.provides).load(built.artifact) as module:
        loaded = GraphModule(built, module)
        assert all(target.startswith("llvm ") for target in loaded.targets().values())
        np.testing.assert_array_equal(loaded([x])[0], execute(built.graph, [x])[0])


def test_report_of_measured_regions_says_whose_code_ran(pair_built: GraphBuild) -> None:
    built = pair_built
    with farm.load(built.artifact) as module:
        measured = GraphModule(built, module).measure([whole(6, 24)], repeat=2)
    report = placement(built.partition, measured)
    assert [r.target.partition(" ")[0] for r in report.regions] == ["ea", "llvm", "ea"]
    assert all(r.measured_s is not None and r.measured_s > 0 for r in report.regions)
    assert "MEASURED" in report.to_text()


def layer(**changes: Any) -> Graph:
    """Return one layer; `changes` say how."""
    with_bias, turned = changes.get("bias", "add"), changes.get("turned", False)
    b = GraphBuilder("layer")
    x = b.input("x", (5, 9), changes.get("dtype", "int8"))
    kind = changes.get("dtype", "int8")
    low = 0 if kind.startswith("u") else -90
    weight = b.constant(
        whole(7, 9, dtype=kind, low=low)
        if turned or with_bias == "dense"
        else whole(9, 7, dtype=kind, low=low)
    )
    bias = b.constant(whole(7, dtype="int32"))
    product = ("dense", (bias,)) if with_bias == "dense" else ("matmul", ())
    attributes = {} if with_bias == "dense" else {"transpose_b": turned}
    value = b.op(product[0], x, weight, *product[1], **attributes)
    if with_bias == "add":
        value = b.op("add", bias, value)
    if changes.get("scaled", True):
        multiplier = b.constant(whole(7, dtype="int32", low=1 << 30, high=(1 << 31) - 1))
        shift = b.constant(np.full(7, 37, np.int32))
        value = b.op("requantize", value, multiplier, shift, zero_point=changes.get("zero", 0))
    if "limit" in changes:
        value = b.op(changes["limit"], value, **changes.get("limits", {}))
    return b.finish(value)


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": "none"},
        {"turned": True, "zero": -7},
        {"bias": "dense", "limit": "relu"},
        {"scaled": False},
        {"bias": "none", "scaled": False, "turned": True},
        {"limit": "clip", "limits": {"low": -20, "high": 40}},
    ],
)
def test_layer_of_any_form_is_one_region_of_the_accelerator(changes: dict[str, Any]) -> None:
    built, targets = check(layer(**changes), [TargetBackend("ea -config=ea8")])
    (placed,) = built.partition.regions
    assert placed.region.backend == "ea"
    assert next(iter(targets.values())) == "ea -config=ea8"


def test_constant_that_is_weight_and_operand_stays_what_it_is_as_operand() -> None:
    b = GraphBuilder("square")
    w = b.constant(whole(6, 6), "w")
    built, targets = check(b.finish(b.op("dense", w, w)), [TargetBackend("ea")])
    assert {p.region.backend for p in built.partition.regions} == {"ea"}, built.partition.reasons
    assert next(iter(targets.values())).startswith("ea")


def test_layer_that_the_accelerator_refuses_says_why_and_runs_on_the_cpu() -> None:
    built, _ = check(layer(dtype="uint8", bias="none", scaled=False), [TargetBackend("ea")])
    assert {p.region.backend for p in built.partition.regions} == {"cpu"}
    assert next(iter(built.partition.reasons.values())) == (
        "ea: layer: out0 is reduced, but not as int32 sum of int8 A[i, k] * W[k, j] from 0, nor over windows of int8 "
        "pixels: in0 is not an int8 input"
    )
    assert built.partition.problems == ()


def test_graph_of_plain_operators_runs_on_the_cpu() -> None:
    b = GraphBuilder("net-1")
    x = b.input("x", (1, 2, 8, 8), "int8")
    value = b.op("conv2d", x, b.constant(whole(3, 2, 3, 3)), padding=[1, 1])
    value = b.op(
        "requantize",
        value,
        b.constant(np.full(3, 1 << 30, np.int32)),
        b.constant(np.full(3, 36, np.int32)),
        axis=1,
    )
    pooled = b.op("max_pool2d", value, kernel=[2, 2], stride=[2, 2])
    flat = b.op("reshape", pooled, shape=[1, 48])
    built, _ = check(b.finish(b.op("concat", flat, flat, axis=1), pooled), [])
    (segment,) = built.plan.segments
    assert segment.symbol == "net_1"


@pytest.mark.parametrize("name", ["memcpy", "memset", "main", "int", "__farm_kernel", "9 lives"])
def test_graph_may_have_any_name(name: str) -> None:
    b = GraphBuilder(name)
    check(b.finish(b.op("relu", b.input("x", (4,), "int32"))))


def test_other_cpus_get_everything_too() -> None:
    graph = layer()
    cross = "llvm -mtriple=aarch64-linux-gnu"
    built = build_graph(graph, [TargetBackend("ea")], cpus=["llvm", cross])
    targets = {s.target.partition(" -mcpu")[0] for s in built.artifact.sections}
    assert {cross, "ea -config=ea16"} < targets


class InC(Takes):
    """Compiles a region to a JSON document and C that runs it."""

    runtime = """
    void run(const char *document, const void *const *inputs, void *const *outputs) {
      int scale = 0;
      while (*document && *document != ':') document++;
      for (document++; *document >= '0' && *document <= '9'; document++) scale = scale * 10 + *document - '0';
      for (int i = 0; i < 4; i++)
        ((int32_t *)outputs[0])[i] = ((const int32_t *)inputs[0])[i] * scale + *(const int32_t *)inputs[1];
    }"""

    def compile(self, region: Any, options: Any) -> JsonCode:  # type: ignore[override]
        return JsonCode({"by": 6, "said": 'a"\\\n?é'}, self.runtime, (np.full((), 5, np.int32),))


def scaling() -> Graph:
    b = GraphBuilder("s")
    x = b.input("x", (4,), "int32")
    six, five = b.constant(np.int32(6)), b.constant(np.int32(5))
    return b.finish(b.op("add", b.op("multiply", x, six, name="m"), five, name="a"))


def test_json_document_and_its_runtime_are_in_the_artifact_and_run() -> None:
    built, _ = check(scaling(), [InC("vendor", frozenset("ma"))])
    (placed,) = built.partition.regions
    assert placed.region.backend == "vendor"
    assert placed.code is not None
    assert placed.code.document == {"by": 6, "said": 'a"\\\n?é'}
    assert any(b'{"by":6' in section.data for section in built.artifact.sections)


def test_region_that_does_not_build_goes_back_to_the_cpu_unless_strict() -> None:
    backend = InC("vendor", frozenset("ma"))
    backend.runtime = "void run(int) { this is no C }"  # type: ignore[misc]
    built, _ = check(scaling(), [backend])
    assert {p.region.backend for p in built.partition.regions} == {"cpu"}
    assert "vendor: does not build: s_vendor_0 for llvm" in built.partition.reasons["m"]
    with pytest.raises(BuildFailed, match="s_vendor_0"):
        build_graph(scaling(), [backend], strict=True)


def test_region_that_the_farm_failed_to_build_stays_where_it_is() -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise BuildFailed("build: 1 failed", **{"llvm -mcpu=x/s_vendor_0": "INFRASTRUCTURE"})

    with pytest.raises(BuildFailed, match="1 failed"):
        build_graph(scaling(), [InC("vendor", frozenset("ma"))], builder=fails)


def test_failure_of_what_no_backend_made_is_an_error() -> None:
    def failing(request: Any, *arguments: Any, **options: Any) -> Any:
        raise BuildFailed("build: 1 failed", **{"llvm/else": "UNSUPPORTED_FUNCTION"})

    with pytest.raises(BuildFailed):
        build_graph(scaling(), [], builder=failing)


def test_function_in_another_language_for_an_accelerator_needs_a_fallback() -> None:
    class Foreign(Takes):
        def compile(self, region: Any, options: Any) -> FunctionCode:
            code = super().compile(region, options)
            body = Source(Language.C, b"void f() {}")
            return FunctionCode(
                replace(code.function, body=body),
                "ea",
                (np.full((), 6, np.int32), np.full((), 5, np.int32)),
            )

    parts = partition(scaling(), [Foreign("npu", frozenset("ma"))])
    assert "packs constants; give a fallback" in parts.reasons["m"]


def test_strict_partition_names_region_and_reason() -> None:
    backend = Takes("acc", frozenset("ma"), fails=frozenset("m"))
    with pytest.raises(UnsupportedFunction, match=r"region s_acc_0 of m \(multiply\), a \(add\)"):
        build_graph(scaling(), [backend], strict=True)


def test_arrays_that_do_not_fit_are_refused_before_anything_is_called() -> None:
    built = build_graph(scaling())
    with farm.load(built.artifact) as module, pytest.raises(InvalidArguments, match="input x"):
        GraphModule(built, module)([np.zeros(4, np.int8)])


def test_long_graph_runs_in_several_host_functions() -> None:
    b = GraphBuilder("long")
    value = b.input("x", (4,), "int32")
    for number in range(70):
        value = b.op("add", value, b.constant(np.int32([number])))
    built, _ = check(b.finish(value), [])
    assert len(built.plan.segments) > 1


def steps(function: Function) -> list[str]:
    return Schedule(function).block_names()


def test_steps_over_the_same_elements_become_one_and_no_others() -> None:
    b = GraphBuilder("steps")
    x = b.input("x", (4, 8))
    bias = b.constant(np.float32(RNG.normal(size=8)))
    y = b.op(
        "leaky_relu",
        b.op("add", b.op("dense", x, b.constant(np.float32(RNG.normal(size=(8, 8))))), bias),
    )
    z = b.op("softmax", y)  # reads it twice
    w = b.op("add", b.op("sum", z, axes=[1], keepdims=True), b.constant(np.float32([[1]])))  # few
    graph = b.finish(b.op("exp", b.op("multiply", z, w)))
    plain = lower(graph)
    fused = fuse(plain)
    gone = set(steps(plain)) - set(steps(fused))
    assert {name.rpartition("_")[0] for name in gone} == {"add", "multiply"}
    assert len(steps(plain)) - len(steps(fused)) == 2
    arrays = [np.float32(RNG.normal(size=(4, 8))), *graph.constants.values()]
    for found, wanted in zip(interpret(fused, arrays), interpret(plain, arrays), strict=True):
        np.testing.assert_array_equal(found, wanted)


class Known:
    """Knows one schedule for the accelerator and one for CPUs, as records of tunings do."""

    def __init__(self) -> None:
        self.asked: dict[tuple[str, str], Function] = {}

    def tuned(self, function: Function, target: Target) -> Function:
        self.asked[function.name, target.kind] = function
        if function.name != "pair_ea_0":
            return function
        sch = Schedule(function)
        loop = sch.get_loops(sch.block_names()[-1])[0]
        if target.kind == "ea":
            sch.annotate(loop, f"{HINT}rows", 2)
        else:
            sch.parallel(loop)
        return sch.function


def test_known_schedules_are_taken_for_regions_of_accelerators_and_cpus(pair: Graph) -> None:
    known, requests = Known(), []

    def builder(request: Any, *arguments: Any, **options: Any) -> Any:
        requests.append(request)
        return build(request, *arguments, **options)

    built, _ = check(pair, [TargetBackend("ea")], builder=builder, tuned=known)
    (request,) = requests
    texts = {t.kind: {f.name: str(f) for f in functions} for t, functions in request.items()}
    assert f"{HINT}rows" in texts["ea"]["pair_ea_0"]
    assert f"{HINT}rows" not in texts["ea"]["pair_ea_6"]
    assert "parallel" in texts["llvm"]["pair_ea_0"]
    (region,) = [p.region for p in built.partition.regions if p.region.backend == "cpu"]
    default = scheduled(fuse(lower(region.graph)), "llvm")
    assert texts["llvm"]["pair_cpu_3"] == str(default)
    for target in ("ea", "llvm"):
        functions = built.plan.functions(target)
        assert {(f.name, target): f for f in functions}.items() <= known.asked.items()
    assert len(known.asked) == 2 + 3


def test_build_is_the_same_twice() -> None:
    first, second = (build_graph(layer(), [TargetBackend("ea")], builder=build) for _ in range(2))
    assert first.artifact.digest == second.artifact.digest
