"""What one module under construction shares: the LLVM module, helper functions, what must be emitted in software.

Owns: declarations and internal helpers, each made once. Does not own: what they compute.

Invariant: helpers appear in the module in the order of their first use, so the module's text is deterministic.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llvmlite import ir

from farm.codegen.llvm.types import I32, PTR, intrinsic_suffix

STATUS_TYPE = ir.FunctionType(I32, [PTR, I32])


class Software(enum.Enum):
    """Operations that a target may lack, and that are then emitted as sequences of others."""

    FLOOR = "floor"
    DIVISION_32 = "division of 32 bits"
    DIVISION_64 = "division of 64 bits"
    CONVERSION_64 = "conversion between floats and 64-bit integers"
    HALF = "conversion between float16 and float32"


class Dots(enum.Enum):
    """Instructions for sums of products of narrow integers."""

    NONE = "none"
    PAIRS = "two products of 16-bit integers"
    QUARTERS = "four products of 8-bit integers"


@dataclass
class Unit:
    """One LLVM module under construction.

    Attributes
    ----------
    software
        What the target lacks, as found by an earlier attempt.
    stack_bytes
        How much of the stack inner buffers may take.
    float32_lanes
        Whether vectors of float32 compute as scalars do; 32-bit NEON flushes denormals.
    dots
        What the target has for sums of products of narrow integers.
    lines
        Whether instructions say which line they come from.
    texts
        What is added to the module as LLVM's text.
    streams
        Whether some store goes past the caches, so that a fence has to follow before other threads are told.
    """

    module: ir.Module
    software: frozenset[Software] = frozenset()
    stack_bytes: int = 64 << 10
    float32_lanes: bool = True
    dots: Dots = Dots.NONE
    lines: bool = False
    texts: list[str] = field(default_factory=list)
    streams: bool = False
    _functions: dict[str, ir.Function] = field(default_factory=dict)

    def text(self) -> str:
        """Return the whole module as text."""
        return "".join([str(self.module), *self.texts])

    def intrinsic(
        self, name: str, types: Sequence[ir.Type], result: ir.Type, args: Sequence[ir.Type]
    ) -> ir.Function:
        """Return a declared LLVM intrinsic, overloaded by `types`."""
        full = ".".join([name, *map(intrinsic_suffix, types)])
        if full not in self._functions:
            self._functions[full] = ir.Function(self.module, ir.FunctionType(result, args), full)
        return self._functions[full]

    def nontemporal(self) -> ir.MDValue:
        """Return what marks a store that goes past the caches, and note that there is one."""
        self.streams = True
        return self.module.add_metadata([ir.Constant(I32, 1)])

    def once_a_turn(self) -> ir.MDValue:
        """Return what marks the end of a loop whose body LLVM is not to repeat."""
        wish = self.module.add_metadata(
            [ir.MetaDataString(self.module, "llvm.loop.unroll.disable")]
        )
        loop = self.module.add_metadata([wish])
        loop.operands = (loop, wish)  # LLVM tells loops' metadata by their naming themselves first
        return loop

    def callee(self, symbol: str) -> ir.Function:
        """Return the declaration of another function with ABI 1."""
        if symbol not in self._functions:
            self._functions[symbol] = ir.Function(self.module, STATUS_TYPE, symbol)
        return self._functions[symbol]

    def helper(
        self,
        name: str,
        result: ir.Type,
        args: Sequence[ir.Type],
        build: Callable[[Unit, ir.IRBuilder, Sequence[ir.Value]], ir.Value],
        *,
        inline: bool = True,
    ) -> ir.Function:
        """Return an internal pure function, built on first use.

        Parameters
        ----------
        build
            Emits the body with a builder at its entry and returns the result.
        inline
            Whether it is always inlined, so that loops around it can be vectorised.
        """
        if name not in self._functions:
            function = ir.Function(self.module, ir.FunctionType(result, args), f"__farm_{name}")
            function.linkage = "internal"
            function.attributes.add("nounwind")
            if inline:
                function.attributes.add("alwaysinline")
            builder = ir.IRBuilder(function.append_basic_block("entry"))
            builder.ret(build(self, builder, function.args))
            self._functions[name] = function
        return self._functions[name]
