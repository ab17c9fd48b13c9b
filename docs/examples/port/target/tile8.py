"""tile8: an accelerator that multiplies 8x8 tiles, with its own code generator, assembler and emulator.

It holds one tile of weights and SLOTS accumulator tiles of int32. Sizes need not divide by 8: what lies outside a
matrix reads as zero and is not stored. A program is a list of 8-byte instructions, little-endian:

    dims m n k t    sizes of the matrices; t=1: w is n x k
    ldw n k         load the tile of w at row k, column n; 8 cycles
    clr s           accumulator s = 0; 1 cycle
    mac s m k       accumulator s += tile of x at row m, column k, times the weights; 8 cycles
    st s m n        store accumulator s to the tile of out at row m, column n; 16 cycles
    args x w out    which parameters of the function the matrices are
"""

import struct

import numpy as np

from farm.accel import Accelerator
from farm.codegen.accelerator import layer_of
from farm.errors import InvalidProgram

FIELDS = {  # after a byte of opcode and a byte for the first field, three numbers of 16 bits
    "dims": ("t", "m", "n", "k"),
    "args": ("x", "w", "out"),
    "ldw": (None, "n", "k"),
    "clr": ("s",),
    "mac": ("s", "m", "k"),
    "st": ("s", "m", "n"),
}
OPS = tuple(FIELDS)
NAMES = ("x", "w", "out")
CYCLES = {"dims": 1, "args": 1, "ldw": 8, "clr": 1, "mac": 8, "st": 16}
MOST = {"tile8": 8, "tile8-small": 2}  # accumulators of each configuration


def encode(op, **fields):
    """Return one instruction as bytes."""
    names = FIELDS[op]
    numbers = [0 if name is None else fields.pop(name) for name in names]
    if fields or not 0 <= numbers[0] < 256 or any(not 0 <= it < 1 << 16 for it in numbers[1:]):
        raise InvalidProgram(f"tile8: {op} {numbers} {fields}; fields are {names}, within range")
    return struct.pack("<BBHHH", OPS.index(op), *numbers, *[0] * (4 - len(numbers)))


def decode(program):
    """Yield the instructions of a program, each as (op, fields)."""
    if len(program) % 8:
        raise InvalidProgram(f"tile8: {len(program)} bytes; an instruction has 8")
    for pc, (op, *numbers) in enumerate(struct.iter_unpack("<BBHHH", program)):
        names = FIELDS[OPS[op]] if op < len(OPS) else ()
        unused = [it for it, name in zip(numbers, (*names, *[None] * 4), strict=False) if not name]
        if not names or any(unused):
            raise InvalidProgram(f"tile8: pc {pc}: no instruction ({op}, {numbers})")
        yield OPS[op], {name: it for name, it in zip(names, numbers, strict=False) if name}


def assemble(text):
    """Return the program of a text, one instruction a line, such as ``mac s=0 m=8 k=16``."""
    lines = [line.partition(";")[0].split() for line in text.splitlines()]
    try:
        split = [(op, [it.split("=") for it in rest]) for op, *rest in filter(None, lines)]
        return b"".join(encode(op, **{k: int(v) for k, v in fields}) for op, fields in split)
    except (ValueError, KeyError) as error:
        raise InvalidProgram(f"tile8: malformed text ({error}); write: mac s=0 m=8 k=16") from error


def disassemble(program):
    """Return the text of a program."""
    lines = [(op, *(f"{k}={v}" for k, v in fields.items())) for op, fields in decode(program)]
    return "".join(f"{' '.join(words)}\n" for words in lines)


def supports(function, slots):
    """Return why a function cannot run here, empty if it can."""
    layer = layer_of(function)
    if layer.kind != "dense" or not layer.is_plain:
        return f"it is {layer.kind} with something around it; only plain products run here"
    types = [function.params[layer.sizes[f"arg_{it}"]].buffer.dtype.value for it in NAMES]
    if types != ["int8", "int8", "int32"]:
        return f"its types are {', '.join(types)}; use int8 times int8 in int32"
    largest = max(layer.sizes[name] for name in "mnk")
    return f"a side of {largest} is above 65528" if largest > 65528 else ""


def knobs(function, slots):
    """How many accumulators share one load of weights."""
    return {"slots": [it for it in (1, 2, 4, 8) if it <= slots]}


def compile_layer(function, slots, knobs):
    """Return the program of a product of matrices."""
    sizes = layer_of(function).sizes
    m, n, k = (sizes[name] for name in "mnk")
    code = [encode("dims", t=sizes["transposed"], m=m, n=n, k=k)]
    code.append(encode("args", **{name: sizes[f"arg_{name}"] for name in NAMES}))
    step = 8 * knobs["slots"]
    for column in range(0, n, 8):
        for first in range(0, m, step):
            rows = list(enumerate(range(first, min(first + step, m), 8)))
            code += [encode("clr", s=slot) for slot, _ in rows]
            for depth in range(0, k, 8):
                code.append(encode("ldw", n=column, k=depth))
                code += [encode("mac", s=slot, m=row, k=depth) for slot, row in rows]
            code += [encode("st", s=slot, m=row, n=column) for slot, row in rows]
    return b"".join(code)


def launch(program, slots, unit):
    """Return what runs a program: this emulator; of a real chip, its driver."""
    (first, dims), (second, args), *code = decode(program)
    if (first, second) != ("dims", "args"):
        raise InvalidProgram("tile8: a program starts with dims and args")
    m, n, k = (dims[name] for name in "mnk")

    def run(arrays):
        x, w, out = (arrays[args[name]] for name in NAMES)
        if (x.shape, w.shape, out.shape) != ((m, k), (n, k) if dims["t"] else (k, n), (m, n)):
            raise InvalidProgram(f"tile8: made for {m}x{n}x{k}, not {x.shape}, {w.shape}")
        w = w.T if dims["t"] else w
        tiles, weights = np.zeros((slots, 8, 8), np.int32), np.zeros((8, 8), np.int32)
        for op, at in code:
            row, column, depth = at.get("m", 0), at.get("n", 0), at.get("k", 0)
            if op == "ldw":
                part = w[depth : depth + 8, column : column + 8]
                weights[:] = 0
                weights[: part.shape[0], : part.shape[1]] = part
            elif op == "clr":
                tiles[at["s"]] = 0
            elif op == "mac":
                part = x[row : row + 8, depth : depth + 8].astype(np.int32)
                tiles[at["s"], : part.shape[0]] += part @ weights[: part.shape[1]]
            else:
                part = out[row : row + 8, column : column + 8]
                part[:] = tiles[at["s"], : part.shape[0], : part.shape[1]]
        return cycles(program, slots)

    return run


def cycles(program, slots):
    """Return how long a program takes: nothing here depends on data."""
    return sum(CYCLES[op] for op, _ in decode(program))


TILE8 = Accelerator(
    name="tile8",
    configs=MOST,
    supports=supports,
    compile=compile_layer,
    knobs=knobs,
    launch=launch,
    assemble=assemble,
    disassemble=disassemble,
    cycles=cycles,
)
