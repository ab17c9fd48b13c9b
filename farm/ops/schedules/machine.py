"""What recipes need to know of a target: how wide its vectors are, and how many it has.

Owns: those numbers, from a target's attributes. Does not own: targets.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.target import Target
from farm.target.cpus import has_feature


@dataclass(frozen=True, slots=True)
class Machine:
    """A CPU as recipes see it.

    Attributes
    ----------
    vector_bytes
        Of one register.
    registers
        Vector registers.
    dots
        What it has for sums of products of narrow integers: ``pairs`` of 16 bits (x86), ``quarters`` of 8 (Arm's
        dotprod), or nothing.
    """

    vector_bytes: int
    registers: int
    dots: str = ""

    def lanes(self, size_bytes: int) -> int:
        """Return how many elements of a size one register holds."""
        return max(1, self.vector_bytes // size_bytes)


def machine_of(target: Target) -> Machine:
    """Return what is known of a target; 16 registers of 128 bits where nothing is."""
    text = str(target)
    if target.family == "llvm/x86_64":
        # AVX-512's own registers are not used by default: many cores slow down, and v3 is the default level
        narrow = "x86-64-v2" in text or "mcpu=x86-64 " in f"{text} "
        return Machine(16 if narrow else 32, 16, "pairs")
    if target.family == "llvm/aarch64":
        given = (target.option("mcpu") or "", target.option("mattr") or "")
        return Machine(16, 32, "quarters" if has_feature("aarch64", *given, "dotprod") else "")
    return Machine(16, 16)
