"""The host's side: data in and out of main memory, run by run.

Owns: how images, weights and biases lie in memory. Does not own: where (`plan`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from farm.errors import InvalidProgram
from marlann.machine import Machine
from marlann.plan import LANES, NONE, Layout, Shape, from_text, runs_of, to_text, unpack

Array = np.ndarray

assemble_plan = from_text
disassemble_plan = to_text


def launch(program: bytes, config: object, unit: str) -> Callable[[Sequence[Array]], int]:
    """Return what runs a program once on arrays, and counts cycles."""
    shape, blocks = unpack(program)
    for _, rows, _, pairs in runs_of(shape):
        if (rows, pairs) not in blocks:
            raise InvalidProgram(
                f"marlann: the program has no code for {rows} rows and {pairs} pairs"
            )

    def run(arrays: Sequence[Array]) -> int:
        machine = Machine()
        x, out = arrays[shape.arg_x], arrays[shape.arg_out]
        bias = None if shape.arg_bias == NONE else arrays[shape.arg_bias]
        _check(shape, x, arrays[shape.arg_w], out)
        coefficients = _coefficients(shape, arrays[shape.arg_w], bias)
        upload = _Upload(machine)
        for number, image in enumerate(_images(shape, x)):
            result = np.empty((shape.oh, shape.ow, shape.all_pairs * 2), out.dtype)
            for row, rows, pair, pairs in runs_of(shape):
                layout = Layout.of(shape, rows, pairs)
                part = coefficients[pair : pair + pairs]
                needed = image[row * shape.sh : row * shape.sh + shape.input_rows(rows)]
                size = rows * shape.ow * pairs * 2 * shape.size
                upload.put(layout.coefficients, ("w", pair), _banks(shape, part))
                upload.put(layout.x, ("x", number, row), needed)
                upload.forget(layout.out, size)
                upload.put(layout.code, "code", np.array(blocks[rows, pairs], np.uint32))
                machine.run(layout.code)
                found = machine.read(layout.out, size)
                block = found.view(out.dtype).reshape(rows, shape.ow, pairs * 2)
                result[row : row + rows, :, 2 * pair : 2 * (pair + pairs)] = block
            _keep(shape, out, number, result[:, :, : shape.o])
        return machine.cycles

    return run


def cycles(program: bytes, config: object) -> int:
    """Return what a run takes: it depends on no data, so one on zeros tells."""
    shape, _ = unpack(program)
    types = {
        shape.arg_x: np.int8,
        shape.arg_w: np.int8,
        shape.arg_out: np.int32 if shape.save else np.int8,
    }
    arrays = [np.zeros(0)] * (1 + max(*types, 0 if shape.arg_bias == NONE else shape.arg_bias))
    x, w, out = _extents(shape)
    for position, extents in ((shape.arg_x, x), (shape.arg_w, w), (shape.arg_out, out)):
        arrays[position] = np.zeros(extents, types[position])
    if shape.arg_bias != NONE:
        arrays[shape.arg_bias] = np.zeros(shape.o, np.int8 if shape.lanes == 1 else np.int16)
    return launch(program, config, "")(arrays)


class _Upload:
    """What of the host's data is in main memory, so that nothing is sent twice."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._held: dict[tuple[int, int], object] = {}

    def put(self, address: int, key: object, data: Array) -> None:
        """Write data that `key` names, unless it is there."""
        if self._held.get((address, data.nbytes)) != key:
            self.forget(address, data.nbytes)
            self._machine.write(address, np.ascontiguousarray(data))
            self._held[address, data.nbytes] = key

    def forget(self, address: int, size: int) -> None:
        """Note that these bytes are overwritten."""
        for at, length in list(self._held):
            if at < address + size and address < at + length:
                del self._held[at, length]


def _extents(shape: Shape) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of x, w and out as the function has them."""
    s = shape
    if s.dense:
        w = (s.o, s.c) if s.dense == 2 else (s.c, s.o)
        return (s.h, s.c), w, (s.oh, s.o)
    if s.nhwc:
        return (s.n, s.h, s.w, s.c), (s.kh, s.kw, s.c, s.o), (s.n, s.oh, s.ow, s.o)
    return (s.n, s.c, s.h, s.w), (s.o, s.c, s.kh, s.kw), (s.n, s.o, s.oh, s.ow)


def _check(shape: Shape, *arrays: Array) -> None:
    for array, extents in zip(arrays, _extents(shape), strict=True):
        if array.shape != extents:
            raise InvalidProgram(
                f"marlann: the program is for {extents}, an array is {array.shape}"
            )


def _images(shape: Shape, x: Array) -> Array:
    """Return images with zeros around them and constants beside each pixel, as rows, columns, channels."""
    s = shape
    if s.dense:
        x = x[np.newaxis, :, np.newaxis]
    elif not s.nhwc:
        x = x.transpose(0, 2, 3, 1)
    made = np.zeros((s.n, s.h + s.top + s.bottom, s.width, s.channels), np.int8)
    made[:, s.top : s.top + s.h, s.left : s.left + s.w, : s.c] = x
    made[..., s.c : s.c + s.lanes] = np.array(LANES[s.lanes], np.int8)
    return made


def _coefficients(shape: Shape, w: Array, bias: Array | None) -> Array:
    """Return coefficients as pairs, pieces, the two of a pair, 8 lanes."""
    s = shape
    if s.dense:
        w = (w.T if s.dense == 2 else w)[np.newaxis, np.newaxis]
    elif not s.nhwc:
        w = w.transpose(2, 3, 1, 0)
    kernel = np.zeros((s.kh, s.kw, s.channels, s.all_pairs * 2), np.int8)
    kernel[:, :, : s.c, : s.o] = w
    if bias is not None:
        kernel[0, 0, s.c : s.c + s.lanes, : s.o] = _split(bias, s.lanes)
    rows = kernel.reshape(s.kh, s.kw * s.channels, s.all_pairs, 2)
    made = np.zeros((s.all_pairs, len(s.chunks), 2, 8), np.int8)
    for number, (_, row, first) in enumerate(s.chunks):
        piece = rows[row, first : min(first + 8, s.ends(first))]
        made[:, number, :, : len(piece)] = piece.transpose(1, 2, 0)
    return made


def _split(bias: Array, lanes: int) -> Array:
    """Return a bias as coefficients of the constants: itself, or 127 times three numbers and a rest."""
    if lanes == 1:
        return bias[np.newaxis]
    many, rest = np.divmod(bias.astype(np.int32), 127)
    parts = []
    for _ in range(3):
        part = np.clip(many, -128, 127)
        parts.append(part)
        many = many - part
    return np.stack([*parts, rest]).astype(np.int8)


def _banks(shape: Shape, part: Array) -> Array:
    """Return coefficients as they lie in memory: for each pass all of the first bank, then all of the second."""
    step = shape.pairs
    passes = [
        part[at : at + step].transpose(2, 0, 1, 3).reshape(-1) for at in range(0, len(part), step)
    ]
    return np.concatenate(passes)


def _keep(shape: Shape, out: Array, number: int, result: Array) -> None:
    if shape.dense:
        out[...] = result[:, 0]
    elif shape.nhwc:
        out[number] = result
    else:
        out[number] = result.transpose(2, 0, 1)
