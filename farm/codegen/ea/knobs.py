"""What of the accelerator's program a search may choose.

Owns: the choices that `tiling` takes as hints. Does not own: searching (`farm.tune`).

Invariant: every choice fits the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from farm.codegen.ea.epilogue import compile_epilogue
from farm.codegen.ea.lift import Layer, lift
from farm.codegen.ea.shape import MAX_BUFFERS, MAX_HEIGHT, MAX_ROWS, room_of, sizes
from farm.codegen.ea.tiling import choose_tiling
from farm.ea.config import MachineConfig, find_config
from farm.ir import Function
from farm.ops.schedules.knobs import Knobs, values
from farm.target import Target

MAX_STEPS = 20_000
"""Products, or steps of a pool, of one program; the tiles that are chosen without hints may take more."""


def hint_knobs(function: Function, target: Target) -> Knobs:
    """Return the hints that a function can have.

    Raises
    ------
    UnsupportedFunction
        The accelerator cannot run it.
    """
    config = find_config(target.option("config") or "")
    layer = lift(function)
    epilogue = compile_epilogue(layer)
    room = room_of(layer, epilogue, config)
    chosen = choose_tiling(layer, epilogue, config).shape
    window = layer.window
    found = {
        "rows": values(sizes(room.rows), chosen.rows),
        "blocks": tuple(range(1, room.blocks + 1)),
        "outputs": tuple(range(1, MAX_BUFFERS + 1)),
        "rows_outside": (0, 1),
    }
    default = {"rows": chosen.rows, "blocks": chosen.blocks, "outputs": chosen.outputs}
    default["rows_outside"] = int(chosen.rows_outside)
    height = "rows"
    if room.lines > 1:
        found["lines"] = values(sizes(room.lines), chosen.lines)
        default["lines"] = chosen.lines
        height = "lines * rows"
        if window.can_be_flat:
            found["flat"] = (0, 1)
            default["flat"] = int(chosen.flat)
            height = f"({height} + flat * (lines - 1) * {window.right.reach - 1})"
    planes = f"(blocks * outputs * {1 + room.inputs} + {room.temporaries})"
    constraints = [
        f"{height} * {planes} + blocks * {room.vectors} + {room.tables} <= {config.acc_rows}"
    ]
    if room.lines > 1:
        constraints.append(f"{height} <= {MAX_HEIGHT}")
    if room.reduces:
        found["buffers"] = tuple(range(1, MAX_BUFFERS + 1))
        default["buffers"] = chosen.buffers
        patch = f"((rows - 1) * {window.right.stride} + {window.right.reach})"
        down = window.down
        lines = f"((lines - 1) * {down.stride} + {down.reach})" if room.lines > 1 else down.reach
        patch = f"{lines} * {patch}"
        constraints.append(f"{patch} <= {MAX_ROWS}")
        if layer.product is not None:
            found["depth_blocks"] = values(sizes(room.depth_blocks), chosen.depth_blocks)
            default["depth_blocks"] = chosen.depth_blocks
            weights = f"blocks * {window.taps * config.dim}"
            operands = f"buffers * depth_blocks * ({patch} + {weights})"
        else:
            operands = f"buffers * blocks * {patch}"
        constraints.append(f"{operands} <= {config.spad_rows}")
    constraints.append(_short(layer, found, default, config))
    return Knobs(found, tuple(constraints), default)


def _short(
    layer: Layer, found: Mapping[str, object], default: Mapping[str, int], config: MachineConfig
) -> str:
    """Return the constraint that leaves out tiny tiles, whose programs would be too long to be any good."""
    window, product = layer.window, layer.product
    extents = {
        "lines": window.down.out,
        "rows": window.right.out,
        "blocks": config.blocks(layer.group_columns),
        "depth_blocks": 0 if product is None else config.blocks(product.depth),
    }
    known = {name: extent for name, extent in extents.items() if name in found}
    lines = "lines" if "lines" in found else "1"
    whole = window.images * config.blocks(layer.columns) // config.blocks(layer.group_columns)
    tiles = " * ".join([str(whole), *(f"-(-{size} // {name})" for name, size in known.items())])
    usual = whole * math.prod(-(-size // default[name]) for name, size in known.items())
    longest = max(MAX_STEPS, 2 * usual * window.taps * default.get("lines", 1))
    return f"{tiles} * {window.taps} * {lines} <= {longest}"
