"""What recipes need to know of a target: how wide its vectors are, and how many it has.

Owns: those numbers, from a target's attributes. Does not own: targets.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.target import Target


@dataclass(frozen=True, slots=True)
class Machine:
    """A CPU as recipes see it.

    Attributes
    ----------
    vector_bytes
        Of one register.
    registers
        Vector registers.
    """

    vector_bytes: int
    registers: int

    def lanes(self, size_bytes: int) -> int:
        """Return how many elements of a size one register holds."""
        return max(1, self.vector_bytes // size_bytes)


def machine_of(target: Target) -> Machine:
    """Return what is known of a target; 16 registers of 128 bits where nothing is."""
    text = str(target)
    if target.family == "llvm/x86_64":
        # AVX-512's own registers are not used by default: many cores slow down, and v3 is the default level
        return Machine(16 if "x86-64-v2" in text or "mcpu=x86-64 " in f"{text} " else 32, 16)
    return Machine(16, 32 if target.family == "llvm/aarch64" else 16)
