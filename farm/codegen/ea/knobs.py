"""What of the accelerator's program a search may choose.

Owns: the choices that `tiling` takes as hints. Does not own: searching (`farm.tune`).

Invariant: every choice fits the machine.
"""

from __future__ import annotations

from farm.codegen.ea.epilogue import compile_epilogue
from farm.codegen.ea.lift import lift
from farm.codegen.ea.tiling import MAX_BUFFERS, choose_tiling, room_of, sizes
from farm.ea.config import find_config
from farm.ir import Function
from farm.ops.schedules.knobs import Knobs, values
from farm.target import Target


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
    chosen = choose_tiling(layer, epilogue, config)
    planes = f"(outputs + {room.inputs})"
    used = f"rows * (blocks * {planes} + {room.temporaries}) + blocks * {room.vectors}"
    constraints = [f"{used} <= {config.acc_rows}"]
    found = {
        "rows": values(sizes(room.rows), chosen.rows),
        "blocks": tuple(range(1, room.blocks + 1)),
        "outputs": tuple(range(1, MAX_BUFFERS + 1)),
        "rows_outside": (0, 1),
    }
    default = {"rows": chosen.rows, "blocks": chosen.blocks, "outputs": len(chosen.outputs)}
    default["rows_outside"] = int(chosen.rows_outside)
    if layer.product is not None:
        found["depth_blocks"] = values(sizes(room.depth_blocks), chosen.depth_blocks)
        found["buffers"] = tuple(range(1, MAX_BUFFERS + 1))
        default |= {"depth_blocks": chosen.depth_blocks, "buffers": len(chosen.a)}
        operands = f"buffers * depth_blocks * (rows + blocks * {config.dim})"
        constraints.append(f"{operands} <= {config.spad_rows}")
    return Knobs(found, tuple(constraints), default)
