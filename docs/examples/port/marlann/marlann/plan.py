"""A layer as the device sees it: one shape for products of matrices and convolutions, and where everything lies.

A product of matrices is a convolution with a kernel of one pixel over an image of one column. An image keeps its
channels together, rounded up to an even number, since the core reads 8 bytes at even addresses. Biases are weights
too: for them each pixel has one to four more channels that hold constants.

A program is a list of numbers, the fields below, and code blocks for the sizes of runs that occur: a run computes some
rows of pixels for some pairs of outputs.
"""

import struct
from dataclasses import dataclass, fields

from farm.errors import InvalidProgram
from marlann.isa import assemble, disassemble
from marlann.machine import CODE_WORDS, MEMORY_BYTES

NONE = 0xFFFF
"""Stands for no parameter."""
LANES = {0: (), 1: (1,), 4: (127, 127, 127, 1)}
"""Constants beside each pixel, by their number: for no bias, one of int8, one of int16."""
_MAGIC = b"MLN1"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a layer, which parameter is which, what is done with sums, and how the work is cut."""

    n: int
    h: int
    w: int
    c: int
    o: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    top: int
    bottom: int
    left: int
    right: int
    nhwc: int
    dense: int  # 0: a convolution; 1: weights k x n; 2: weights n x k
    arg_x: int
    arg_w: int
    arg_bias: int
    arg_out: int
    lanes: int
    save: int  # 1: sums are stored as they are, in 32 bits
    relu: int
    shift: int
    pairs: int  # of outputs, in one pass over the pixels
    rows: int  # of pixels, in one run
    group: int  # pairs in one run
    pairs_outside: int  # 1: all rows for one group of pairs before the next

    @property
    def channels(self) -> int:
        """Bytes of one pixel."""
        return (self.c + self.lanes + 1) // 2 * 2

    @property
    def width(self) -> int:
        """Pixels of one row, those around the image included."""
        return self.w + self.left + self.right

    @property
    def all_pairs(self) -> int:
        """Pairs of outputs of the layer."""
        return -(-self.o // 2)

    @property
    def size(self) -> int:
        """Bytes of one result."""
        return 4 if self.save else 1

    @property
    def chunks(self) -> tuple[tuple[int, int, int], ...]:
        """What one output needs, in pieces of 8 bytes: (offset, row of the kernel, first byte in that row)."""
        whole = self.kw * self.channels
        starts = [0] if self.dw == 1 else [s * self.channels for s in range(self.kw)]
        length = whole if self.dw == 1 else self.channels
        return tuple(
            (
                r * self.dh * self.width * self.channels + start * self.dw + at,
                r,
                start + at,
            )
            for r in range(self.kh)
            for start in starts
            for at in range(0, length, 8)
        )

    def ends(self, first: int) -> int:
        """Return where the piece of a kernel's row that holds byte `first` ends."""
        if self.dw == 1:
            return self.kw * self.channels
        return (first // self.channels + 1) * self.channels

    def input_rows(self, rows: int) -> int:
        """Return how many rows of the image some rows of results need."""
        return (rows - 1) * self.sh + (self.kh - 1) * self.dh + 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Addresses in main memory for one run."""

    coefficients: int
    x: int
    out: int
    code: int

    @staticmethod
    def of(shape: Shape, rows: int, pairs: int) -> "Layout":
        """Return where things lie for so many rows and pairs."""
        x = pairs * len(shape.chunks) * 16
        out = x + shape.input_rows(rows) * shape.width * shape.channels + 8
        code = out + rows * shape.ow * pairs * 2 * shape.size
        return Layout(0, x, out, (code + 3) // 4 * 4)

    def fits(self, words: int) -> bool:
        """Tell whether code of so many words fits too."""
        return self.code + 4 * words <= MEMORY_BYTES


def most_pairs(chunks: int) -> int:
    """Return how many pairs one pass can have: coefficients and code of one pixel must fit their memories."""
    return min(CODE_WORDS // chunks, (CODE_WORDS - 2) // (chunks + 1))


def runs_of(shape: Shape) -> list[tuple[int, int, int, int]]:
    """Return the runs for one image in order: (first row, rows, first pair, pairs)."""
    rows = [(at, min(shape.rows, shape.oh - at)) for at in range(0, shape.oh, shape.rows)]
    pairs = [
        (at, min(shape.group, shape.all_pairs - at))
        for at in range(0, shape.all_pairs, shape.group)
    ]
    if shape.pairs_outside:
        return [(*row, *pair) for pair in pairs for row in rows]
    return [(*row, *pair) for row in rows for pair in pairs]


Blocks = dict[tuple[int, int], list[int]]
"""Code by the numbers of rows and pairs that it is for."""


def pack(shape: Shape, blocks: Blocks) -> bytes:
    """Return a program."""
    numbers = [getattr(shape, field.name) for field in fields(Shape)]
    data = _MAGIC + struct.pack(f"<{len(numbers)}I", *numbers)
    for (rows, pairs), words in blocks.items():
        data += struct.pack(f"<III{len(words)}I", rows, pairs, len(words), *words)
    return data


def unpack(program: bytes) -> tuple[Shape, Blocks]:
    """Return what a program is made of; raises InvalidProgram if it is none."""
    count = len(fields(Shape))
    if len(program) % 4 or len(program) < 4 * (count + 1) or not program.startswith(_MAGIC):
        raise InvalidProgram(f"marlann: no program ({len(program)} bytes, {program[:4]!r})")
    numbers = struct.unpack(f"<{len(program) // 4 - 1}I", program[4:])
    shape, at = Shape(*numbers[:count]), count
    if (
        shape.lanes not in LANES
        or 0 in numbers[:13]
        or not (shape.pairs and shape.rows and shape.group)
    ):
        raise InvalidProgram("marlann: no program: a size is 0, or there are lanes of no kind")
    blocks: Blocks = {}
    while at < len(numbers):
        rows, pairs, words = (*numbers[at : at + 3], 0, 0)[:3]
        code = list(numbers[at + 3 : at + 3 + words])
        if len(code) != words or not words or (rows, pairs) in blocks:
            raise InvalidProgram(
                f"marlann: no program: a block of {words} words at {at} is cut or there twice"
            )
        blocks[rows, pairs] = code
        at += 3 + words
    return shape, blocks


def to_text(program: bytes) -> str:
    """Return a program as text."""
    shape, blocks = unpack(program)
    lines = [
        ".layer " + " ".join(f"{it.name}={getattr(shape, it.name)}" for it in fields(Shape)) + "\n"
    ]
    for (rows, pairs), words in blocks.items():
        lines.append(f".block rows={rows} pairs={pairs}\n{disassemble(words)}")
    return "".join(lines)


def from_text(text: str) -> bytes:
    """Return the program of a text; raises InvalidProgram if it is none."""
    head, *parts = text.split("\n.block ")
    try:
        given = dict(word.split("=") for word in head.removeprefix(".layer").split())
        shape = Shape(**{name: int(value) for name, value in given.items()})
        blocks: Blocks = {}
        for part in parts:
            sizes, _, code = part.partition("\n")
            about = dict(word.split("=") for word in sizes.split())
            blocks[int(about["rows"]), int(about["pairs"])] = assemble(code)
        program = pack(shape, blocks)
    except (ValueError, TypeError, KeyError, struct.error) as error:
        raise InvalidProgram(f"marlann: no text of a program ({error})") from error
    unpack(program)
    return program
