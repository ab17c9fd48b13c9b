"""get_block, get_loops, get_producers, get_consumers and fast_math: what is there, and what is allowed.

Owns: finding blocks and loops by name. Does not own: changing them.

Invariant: loops are listed outermost first, blocks in program order.
"""

from __future__ import annotations

from dataclasses import replace

from farm.ir.function import FastMath
from farm.schedule.primitive import BlockRV, LoopRV, Result, primitive, refuse
from farm.schedule.tree import State


@primitive()
def get_block(state: State, name: str) -> Result:
    """Find a block; see `Schedule.get_block`."""
    return state, [BlockRV(state.leaf(name)[0].name)]


@primitive(many=True)
def get_loops(state: State, block: str) -> Result:
    """Find the loops around a block; see `Schedule.get_loops`."""
    _, place = state.leaf(block)
    return state, [LoopRV(loop.var.name) for loop in place.loops]


@primitive(many=True)
def get_producers(state: State, block: str) -> Result:
    """Find the blocks that store what a block reads; see `Schedule.get_producers`."""
    leaf, _ = state.leaf(block)
    names = leaf.buffers_read()
    found = [x for x in state.all_leaves() if x is not leaf and x.buffer.name in names]
    return state, [BlockRV(each.name) for each in found]


@primitive(many=True)
def get_consumers(state: State, block: str) -> Result:
    """Find the blocks that read what a block stores; see `Schedule.get_consumers`."""
    leaf, _ = state.leaf(block)
    found = [x for x in state.readers(leaf.buffer.name) if x is not leaf]
    return state, [BlockRV(each.name) for each in found]


@primitive()
def fast_math(state: State, contract: bool = False, reassociate: bool = False) -> Result:
    """Allow code generators and the schedule to round otherwise; see `Schedule.fast_math`."""
    if not isinstance(contract, bool) or not isinstance(reassociate, bool):
        raise refuse("fast_math", state.function.name, "contract and reassociate are True or False")
    allowed = state.function.fast_math
    new = FastMath(contract or allowed.contract, reassociate or allowed.reassociate)
    return replace(state, function=replace(state.function, fast_math=new)), []
