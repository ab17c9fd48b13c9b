"""Templates: every configuration of every operator is a schedule that computes the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fuzz.oracle import arguments

import farm.ops as ops
import farm.te as te
from farm.codegen import compile_function
from farm.codegen.ea.knobs import hint_knobs
from farm.ea.emulator import Machine
from farm.ea.encoding import decode_program
from farm.errors import InvalidInput, ScheduleError, UnsupportedFunction
from farm.ir import Function, Role, interpret, serialise
from farm.schedule import Trace
from farm.target import Target
from farm.tune import Space
from farm.tune.templates import Template, template_for

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"
ARM = "llvm -mtriple=aarch64-linux-gnu"


def of(
    make: Callable[..., te.Tensor], *shapes: tuple[int, ...], dtype: str = "float32"
) -> Function:
    operands = [te.placeholder(shape, dtype, name=f"x{n}") for n, shape in enumerate(shapes)]
    return te.function("kernel", [*operands, make(*operands)])


def padded(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    return ops.relu(ops.conv2d(x, w, padding=1))


OPERATORS: dict[str, Callable[[], Function]] = {
    "add": lambda: of(ops.add, (5, 70), (70,)),
    "avg_pool2d": lambda: of(lambda x: ops.avg_pool2d(x, 2), (1, 2, 6, 32)),
    "clip": lambda: of(lambda x: ops.clip(x, 0.0, 1.0), (90,)),
    "concat": lambda: of(lambda x, y: ops.concat([x, y], 1), (3, 24), (3, 24)),
    "conv1d": lambda: of(ops.conv1d, (1, 4, 20), (8, 4, 3)),
    "conv2d and relu": lambda: of(padded, (1, 3, 6, 9), (8, 3, 3, 3)),
    "conv2d, channels last": lambda: of(
        lambda x, w: ops.conv2d(x, w, padding=1, layout="NHWC"), (1, 5, 5, 3), (3, 3, 3, 16)
    ),
    "depthwise": lambda: of(
        lambda x, w: ops.conv2d(x, w, padding=1, groups=4), (1, 4, 7, 16), (4, 1, 3, 3)
    ),
    "dense": lambda: of(ops.dense, (7, 24), (16, 24), (16,)),
    "gelu": lambda: of(ops.gelu, (3, 70)),
    "layer_norm": lambda: of(ops.layer_norm, (3, 64), (64,), (64,)),
    "matmul": lambda: of(ops.matmul, (14, 24), (24, 32)),
    "matmul of bytes": lambda: of(ops.matmul, (14, 24), (24, 32), dtype="int8"),
    "matmul of odd extents": lambda: of(ops.matmul, (7, 13), (13, 19)),
    "matmul, transposed": lambda: of(
        lambda a, b: ops.matmul(a, b, transpose_a=True, transpose_b=True), (24, 13), (32, 24)
    ),
    "matmul in batches": lambda: of(ops.matmul, (2, 6, 12), (2, 12, 16)),
    "matrix times vector": lambda: of(
        lambda a, b: ops.reshape(ops.matmul(a, b), (9,)), (9, 64), (64, 1)
    ),
    "max": lambda: of(lambda x: ops.max(x, 0), (6, 40)),
    "max_pool2d": lambda: of(lambda x: ops.max_pool2d(x, 2), (1, 2, 6, 34)),
    "mean": lambda: of(lambda x: ops.mean(x, -1), (3, 64)),
    "pad": lambda: of(lambda x: ops.pad(x, [(1, 2), (3, 1)]), (4, 60)),
    "resize": lambda: of(lambda x: ops.resize(x, (6, 40)), (1, 2, 3, 20)),
    "softmax": lambda: of(ops.softmax, (3, 64)),
    "sum": lambda: of(lambda x: ops.sum(x, (0, 1)), (3, 4, 24)),
    "transpose": lambda: of(ops.transpose, (12, 40)),
}


def drawn(template: Template, count: int, seed: int = 1) -> list[dict[str, object]]:
    """Return some configurations, the default first."""
    numbers = template.space.draw(np.random.default_rng(seed), count)
    return [dict(template.default), *map(template.space.configuration, numbers)]


@pytest.mark.parametrize("target", [X86, ARM])
@pytest.mark.parametrize("name", OPERATORS)
def test_every_configuration_of_an_operator_computes_the_same(name: str, target: str) -> None:
    function = OPERATORS[name]()
    template = template_for(function, target)
    inputs = arguments(function, 3)
    wanted = interpret(function, inputs)
    assert template.space.contains(template.default)
    for configuration in drawn(template, 2 if target == X86 else 1):
        schedule = template.schedule(configuration)
        found = interpret(schedule.function, inputs, check_conflicts=True)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=str(configuration))
        again = Trace.from_json(schedule.trace.to_json()).apply(template.function)
        assert again.function == schedule.function


@pytest.mark.parametrize("target", [X86, ARM])
def test_every_configuration_of_a_large_product_is_accepted(target: str) -> None:
    template = template_for(of(ops.matmul, (512, 512), (512, 512)), target)
    assert template.space.size > 2000
    for configuration in drawn(template, 4):
        assert "register" in str(template.schedule(configuration))


def test_threads_add_the_choice_of_parallel_loops() -> None:
    function = of(ops.matmul, (128, 128), (128, 128))
    one, four = template_for(function, X86), template_for(function, X86, threads=4)
    assert four.space.size == 2 * one.space.size
    assert four.default == {**one.default, "parallel": 1}
    assert "parallel" in str(four.schedule(four.default))
    assert "parallel" not in str(four.schedule({**four.default, "parallel": 0}))


def test_knobs_of_a_recipe_that_is_not_chosen_stay_at_their_defaults() -> None:
    template = template_for(of(ops.matmul, (24, 24), (24, 32)), X86)
    names = [p.name for p in template.space.parameters]
    recipes = template.space.parameters[names.index("matmul_recipe")].values
    assert {"panels", "tiles"} <= set(recipes)
    for number in range(template.space.size):
        configuration = template.space.configuration(number)
        for name, value in configuration.items():
            recipe = name.split("_")[1]
            if recipe in recipes and recipe != configuration["matmul_recipe"]:
                assert value == template.default[name]


def test_function_that_leaves_nothing_to_choose_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nothing to choose"):
        template_for(of(lambda x: ops.sum(x, 0), (1,)), X86)
    with pytest.raises(InvalidInput, match="opencl"):
        template_for(of(ops.relu, (64,)), "opencl")


def test_configuration_that_a_step_refuses_says_which() -> None:
    template = template_for(of(ops.relu, (64,)), X86)
    (name,) = template.default
    with pytest.raises(ScheduleError, match=f"{name}=2000"):
        template.schedule({name: 2000})


def dense(rows: int, depth: int, columns: int, *, residual: bool = False) -> Function:
    a, w = (
        te.placeholder((rows, depth), "int8", name="a"),
        te.placeholder((depth, columns), "int8", name="w"),
    )
    bias = te.placeholder((columns,), "int32", name="bias")
    more = te.placeholder((rows, columns), "int32", name="more")
    k = te.reduce_axis(depth, "k")
    c = te.compute(
        (rows, columns),
        lambda i, j: te.sum(a[i, k].astype("int32") * w[k, j].astype("int32"), k),
        name="c",
    )
    extra = [more] if residual else []
    y = te.compute(
        (rows, columns),
        lambda i, j: te.maximum(c[i, j] + bias[j], 0) + (more[i, j] if residual else 0),
        name="y",
    )
    return te.function("layer", [a, w, bias, *extra, y])


def on_the_accelerator(
    function: Function, config: str, inputs: list[np.ndarray], chaos: int
) -> np.ndarray:
    module = compile_function(serialise(function), "device", Target.parse(f"ea -config={config}"))
    program = decode_program(module.data)
    out = next(p.buffer for p in function.params if p.role is Role.OUTPUT)
    result = np.full(out.shape, 77, out.dtype.numpy)
    Machine(program.config).run(program, [*inputs, result], chaos_seed=chaos)
    return result


@pytest.mark.parametrize("config", ["ea8", "ea16"])
@pytest.mark.parametrize(
    ("shape", "residual"), [((20, 50, 70), False), ((33, 150, 30), True), ((5, 9, 150), True)]
)
def test_every_hint_to_the_accelerator_computes_the_same(
    config: str, shape: tuple[int, int, int], residual: bool
) -> None:
    function = dense(*shape, residual=residual)
    template = template_for(function, f"ea -config={config}")
    inputs = arguments(function, 5)
    rng = np.random.default_rng(1)
    wanted = on_the_accelerator(function, config, inputs, 0)
    a, w, bias, *more = (each.astype(np.int64) for each in inputs)
    plain = np.maximum(a @ w + bias, 0) + (more[0] if more else 0)
    np.testing.assert_array_equal(wanted, plain.astype(np.int32))
    for configuration in [
        *drawn(template, 3),
        *({**template.default, "buffers": n, "depth_blocks": 1, "rows": 4} for n in (1, 2)),
    ]:
        scheduled = template.schedule(configuration).function
        found = on_the_accelerator(scheduled, config, inputs, int(rng.integers(1000)))
        np.testing.assert_array_equal(found, wanted, err_msg=str(configuration))


def test_hints_change_the_accelerator_s_program_and_the_default_is_none() -> None:
    function = dense(64, 64, 64)
    target = Target.parse("ea -config=ea16")
    template = template_for(function, target)

    def program(configuration: dict[str, object]) -> bytes:
        scheduled = template.schedule(configuration).function
        return compile_function(serialise(scheduled), "device", target).data

    without = compile_function(serialise(function), "device", target).data
    assert program(template.default) == without
    assert len({program(each) for each in drawn(template, 5)}) > 3


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ea.rows", 0, "use 1 to"),
        ("ea.rows", 100_000, "use 1 to"),
        ("ea.colour", 1, "known"),
        ("ea.rows", "many", "known"),
        ("ea.buffers", 3, "use 1 to 2"),
    ],
)
def test_impossible_hints_are_refused_with_what_is_possible(
    key: str, value: int | str, message: str
) -> None:
    from farm.schedule import Schedule

    sch = Schedule(dense(64, 64, 64))
    sch.annotate("i0" if "i0" in str(sch) else sch.get_loops("y")[0], key, value)
    with pytest.raises(UnsupportedFunction, match=message):
        compile_function(serialise(sch.function), "device", Target.parse("ea"))


def test_hints_that_do_not_fit_together_are_refused() -> None:
    from farm.schedule import Schedule

    function = dense(2000, 500, 128)
    sch = Schedule(function)
    for key, value in {"ea.rows": 500, "ea.blocks": 8}.items():
        sch.annotate(sch.get_loops("y")[0], key, value)
    with pytest.raises(UnsupportedFunction, match="accumulator rows of"):
        compile_function(serialise(sch.function), "device", Target.parse("ea"))


def test_accelerator_template_of_a_function_without_a_product_has_no_depth() -> None:
    x = te.placeholder((64, 64), "int32", name="x")
    function = te.function("twice", [x, te.compute((64, 64), lambda i, j: x[i, j] * 2, name="y")])
    knobs = hint_knobs(function, Target.parse("ea"))
    assert set(knobs.values) == {"rows", "blocks", "outputs", "rows_outside"}
    assert Space(dict(knobs.values), list(knobs.constraints)).contains(dict(knobs.default))


def test_space_of_the_accelerator_leaves_out_programs_that_are_too_long() -> None:
    function = dense(3136, 576, 64)
    space = template_for(function, "ea").space
    tiny = {"rows": 1, "blocks": 1, "depth_blocks": 1, "buffers": 2, "outputs": 2}
    assert not space.contains({**tiny, "rows_outside": 0})
    assert space.contains({**tiny, "rows": 64, "depth_blocks": 4, "rows_outside": 0})


def test_hints_whose_program_would_be_too_long_are_refused() -> None:
    from farm.schedule import Schedule

    sch = Schedule(dense(40_000, 600, 64))
    for key in ("ea.rows", "ea.blocks", "ea.depth_blocks"):
        sch.annotate(sch.get_loops("y")[0], key, 1)
    with pytest.raises(UnsupportedFunction, match=r"more than \d+ instructions.* use larger tiles"):
        compile_function(serialise(sch.function), "device", Target.parse("ea -config=ea8"))
