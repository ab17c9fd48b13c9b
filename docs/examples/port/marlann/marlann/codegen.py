"""The code generator: products of int8 matrices and convolutions, with bias, shift and clipping.

Owns: what is taken and why not, the choices, and the code. Does not own: addresses (`plan`), data (`host`).
"""

from collections.abc import Mapping
from dataclasses import replace

from farm.codegen.accelerator import Layer, layer_of
from farm.errors import UnsupportedFunction
from farm.ir import Function
from farm.ir.dtype import DType
from farm.ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load
from marlann.isa import Instruction, encode
from marlann.machine import MEMORY_BYTES
from marlann.plan import NONE, Blocks, Layout, Shape, most_pairs, pack, runs_of

_LARGEST = 1 << 23
_LANES = {None: 0, DType.INT8: 1, DType.INT16: 4}


def supports(function: Function, config: object) -> str:
    """Return why a function cannot run, empty if it can."""
    try:
        _chosen(function, {})
    except UnsupportedFunction as error:
        return error.message.partition(": ")[2] or error.message
    return ""


def knobs(function: Function, config: object) -> dict[str, list[int]]:
    """Return the choices: how many pairs of outputs a pass has, how many rows a run has, and which goes first."""
    shape = _shape(function)
    most = min(most_pairs(len(shape.chunks)), shape.all_pairs)
    default = _cut(shape, most, None, 0)
    halves = {-(-most // part) for part in (1, 2, 3, 4, 8)}
    rows = {-(-shape.oh // part) for part in (1, 2, 3, 4, 8, 16)}
    fitting = [
        it for it in sorted(rows, reverse=True) if _fits(replace(shape, pairs=most), it, most)
    ]
    return {
        "pairs": sorted(halves, reverse=True),
        "rows": [default.rows, *(it for it in fitting if it != default.rows)],
        "pairs_outside": [0, 1],
    }


def compile_layer(function: Function, config: object, knobs: Mapping[str, int]) -> bytes:
    """Return the program of a layer."""
    shape = _chosen(function, knobs)
    blocks: Blocks = {}
    for _, rows, _, pairs in runs_of(shape):
        if (rows, pairs) not in blocks:
            blocks[rows, pairs] = _code(shape, rows, pairs)
    return pack(shape, blocks)


def _refuse(function: Function, why: str) -> UnsupportedFunction:
    return UnsupportedFunction(f"function {function.name}: {why}")


def _chosen(function: Function, knobs: Mapping[str, int]) -> Shape:
    shape = _shape(function)
    most = min(most_pairs(len(shape.chunks)), shape.all_pairs)
    pairs = min(knobs.get("pairs", most), most)
    try:
        return _cut(shape, pairs, knobs.get("rows"), knobs.get("pairs_outside", 0))
    except ValueError as error:
        raise _refuse(
            function, f"one row of it does not fit {MEMORY_BYTES} bytes of memory"
        ) from error


def _shape(function: Function) -> Shape:
    """Return a layer's sizes and what is done with its sums; raises UnsupportedFunction."""
    layer = layer_of(function)
    sizes = dict(layer.sizes)
    types = {
        name: function.params[sizes[f"arg_{name}"]].buffer.dtype
        for name in ("x", "w")
        if f"arg_{name}" in sizes
    }
    if layer.kind not in ("dense", "conv2d") or set(types.values()) != {DType.INT8}:
        raise _refuse(function, f"it is {layer.kind}, not a product or a convolution of int8")
    if layer.kind == "dense":
        extra = {"dense": 1 + sizes.pop("transposed"), "nhwc": 1}
        names = {
            "n": 1,
            "h": sizes["m"],
            "w": 1,
            "c": sizes["k"],
            "o": sizes["n"],
            "oh": sizes["m"],
            "ow": 1,
        }
        ones = dict.fromkeys(("kh", "kw", "sh", "sw", "dh", "dw"), 1)
        zeros = dict.fromkeys(("top", "bottom", "left", "right"), 0)
        positions = {name: value for name, value in sizes.items() if name.startswith("arg_")}
        sizes = {**names, **ones, **zeros, **extra, **positions}
    else:
        sizes["dense"] = 0
    around = _around(function, layer)
    depth = sizes["kh"] * sizes["kw"] * sizes["c"]
    biggest = {0: 0, 1: 127, 4: 32767}[around["lanes"]]
    if depth * (1 << 14) + biggest >= _LARGEST:
        raise _refuse(function, f"sums of {depth} products may not fit 24 bits; at most 511 do")
    shape = Shape(**sizes, **around, pairs=1, rows=1, group=1, pairs_outside=0)
    if most_pairs(len(shape.chunks)) < 1:
        raise _refuse(
            function, f"one output takes {len(shape.chunks)} reads; the code memory holds 509"
        )
    return shape


def _around(function: Function, layer: Layer) -> dict[str, int]:
    """Return what is done with sums: bias, shift, clipping, and as what they are stored."""
    value, narrow = layer.value, False
    low = -128
    match value:
        case Cast(
            DType.INT8,
            Binary(BinaryOp.MIN, Binary(BinaryOp.MAX, inner, Const(int() as low)), Const(127)),
        ):
            value, narrow = inner, True
    shift = 0
    match value:
        case Binary(BinaryOp.SHR, inner, Const(int() as shift)) if narrow and 0 <= shift < 32:
            value = inner
    bias: Load | None = None
    match value:
        case Binary(BinaryOp.ADD, a, b):
            bias, value = (
                (_bias(layer, b), a) if _bias(layer, b) is not None else (_bias(layer, a), b)
            )
    assert layer.product is not None
    plain = value == Load(layer.product.result, layer.axes)
    kind = None if bias is None else bias.buffer.dtype
    if (
        not plain
        or low not in (-128, 0)
        or kind not in _LANES
        or layer.product.result.dtype is not DType.INT32
    ):
        raise _refuse(
            function,
            "what is around the sum is more than a bias of int8 or int16, a shift, and clipping to int8 or its "
            "positive half",
        )
    names = [param.buffer.name for param in function.params]
    return {
        "arg_bias": NONE if bias is None else names.index(bias.buffer.name),
        "lanes": _LANES[kind],
        "save": int(not narrow),
        "relu": int(low == 0),
        "shift": shift,
    }


def _bias(layer: Layer, value: Expr) -> Load | None:
    """Return the load of a bias of one number for each output, widened; None if it is something else."""
    outputs = layer.axes[-1] if layer.kind == "dense" or layer.sizes["nhwc"] else layer.axes[1]
    match value:
        case Cast(DType.INT32, Load(_, (axis,)) as load) if axis == outputs:
            return load
    return None


def _fits(shape: Shape, rows: int, group: int) -> bool:
    tail = group % shape.pairs
    return Layout.of(shape, rows, group).fits(_words(shape, rows, group, tail))


def _words(shape: Shape, rows: int, group: int, tail: int) -> int:
    """Return an upper bound of the words of a run's code."""
    passes = -(-group // shape.pairs)
    routine = shape.ow + 2
    return 4 + passes * (6 + rows * (1 if shape.ow > 1 else shape.ow)) + 2 * routine + 512


def _cut(shape: Shape, pairs: int, rows: int | None, pairs_outside: int) -> Shape:
    """Return the shape with its work cut: as many rows and pairs in one run as fit; raises ValueError if none do."""
    shape = replace(shape, pairs=pairs, pairs_outside=pairs_outside)
    wanted = [rows] if rows is not None else range(shape.oh, 0, -1)
    for group in (shape.all_pairs, pairs):  # all pairs at once if that leaves room for some rows
        for number in wanted:
            if _fits(shape, number, group):
                return replace(shape, rows=number, group=_grown(shape, number, group))
    raise ValueError("does not fit")


def _grown(shape: Shape, rows: int, group: int) -> int:
    """Return the most whole passes that fit beside so many rows."""
    while group + shape.pairs <= shape.all_pairs and _fits(shape, rows, group + shape.pairs):
        group += shape.pairs
    return min(group, shape.all_pairs)


def _code(shape: Shape, rows: int, pairs: int) -> list[int]:
    """Return the code of a run: what the sequencer does, routines for one row, and the code of one pixel."""
    chunks, size = shape.chunks, shape.size
    layout = Layout.of(shape, rows, pairs)
    step, pitch = shape.sw * shape.channels, 2 * pairs * size
    down = (shape.sh * shape.width * shape.channels - shape.ow * step) % MEMORY_BYTES
    pixel = [Instruction("AddLBP", (step,)), Instruction("AddSBP", (pitch,))]
    store = "Save" if shape.save else "ReLU" if shape.relu else "Store"
    for pair in range(min(shape.pairs, pairs)):
        for number, (offset, _, _) in enumerate(chunks):
            name = "MACC" if number else "MACCZ"
            pixel.append(Instruction(name, (offset, pair * len(chunks) + number)))
        operands = (2 * pair * size,) if shape.save else (2 * pair, shape.shift)
        pixel.append(Instruction(store, operands))
    counts = [min(shape.pairs, pairs - at) for at in range(0, pairs, shape.pairs)]
    lengths = {count: 2 + count * (len(chunks) + 1) for count in counts}
    inline = down == 0 and shape.ow == 1
    routines: dict[int, list[Instruction]] = {}
    for count in dict.fromkeys(counts):
        row = [Instruction("Execute", (0, lengths[count]))] * shape.ow
        routines[count] = (
            row if inline else [*row, Instruction("AddLBP", (down,)), Instruction("Return")]
        )
    head_size = 3 + sum(6 + rows for _ in counts) + 1
    places, at = {}, layout.code + 4 * head_size
    for count, routine in routines.items():
        places[count] = at
        at += 0 if inline else 4 * len(routine)
    code = [Instruction("SetCBP", (0,)), Instruction("LoadCode", (at, 0))]
    code.append(Instruction("ContinueLoad", (len(pixel) - 1,)))
    for number, count in enumerate(counts):
        first = number * shape.pairs
        bank = count * len(chunks)
        source = layout.coefficients + first * len(chunks) * 16
        for which in (0, 1):
            code.append(Instruction(f"LoadCoeff{which}", (source + which * bank * 8, 0)))
            code.append(Instruction("ContinueLoad", (bank - 1,)))
        code.append(Instruction("SetLBP", ((layout.x - step) % MEMORY_BYTES,)))
        code.append(
            Instruction("SetSBP", ((layout.out + 2 * first * size - pitch) % MEMORY_BYTES,))
        )
        code += routines[count] * rows if inline else [Instruction("Call", (places[count],))] * rows
    code.append(Instruction("Return"))
    assert len(code) == head_size
    for routine in () if inline else routines.values():
        code += routine
    return [encode(it) for it in (*code, *pixel)]
