"""Finding blocks and loops, and allowing other rounding."""

from __future__ import annotations

from farm.schedule.base import Block, Recorder
from farm.schedule.primitive import BlockRV, LoopRV


class Queries(Recorder):
    """Methods that find things."""

    def get_block(self, name: str) -> BlockRV:
        """Return a block by name: that of the buffer that it stores to, at first.

        Raises
        ------
        ScheduleError
            There is none of that name; the message lists those that are there.
        """
        (found,) = self.take("get_block", {"name": name})
        assert isinstance(found, BlockRV)
        return found

    def get_loops(self, block: Block) -> list[LoopRV]:
        """Return the loops around a block, outermost first.

        Examples
        --------
        >>> sch = Schedule(matmul)
        >>> sch.get_loops("c")
        ['i', 'j', 'k']
        """
        return [x for x in self.take("get_loops", {"block": block}) if isinstance(x, LoopRV)]

    def get_producers(self, block: Block) -> list[BlockRV]:
        """Return the blocks that store what a block reads, in program order."""
        return [x for x in self.take("get_producers", {"block": block}) if isinstance(x, BlockRV)]

    def get_consumers(self, block: Block) -> list[BlockRV]:
        """Return the blocks that read what a block stores, in program order."""
        return [x for x in self.take("get_consumers", {"block": block}) if isinstance(x, BlockRV)]

    def fast_math(self, *, contract: bool = False, reassociate: bool = False) -> None:
        """Allow more freedom with floats (see `farm.ir.FastMath`); what is allowed already stays so.

        Parameters
        ----------
        contract
            Fused multiply-adds.
        reassociate
            Other orders of float reductions, which some primitives need: without it a schedule never changes a bit
            of a result.
        """
        self.take("fast_math", {"contract": contract, "reassociate": reassociate})
