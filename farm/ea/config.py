"""The numbers of one accelerator, and the configurations known by name.

Owns `MachineConfig`, which drives the emulator, the checks, the assembler and code generators.
Does not own instruction semantics (`farm.ea.isa`).

Invariant: every row, semaphore and argument of a valid configuration can be named by the fields of
the instruction encoding; two configurations have one id only if they are equal.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

from farm.core.digest import canonical_json
from farm.errors import InvalidTarget

MAX_SPAD_ROWS = 1 << 15
MAX_ACC_ROWS = 1 << 11


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """All numbers of one accelerator.

    Parameters
    ----------
    name
        As in the target text ``ea -config=NAME``.
    dim
        Lanes of a row and side of the multiplier array; a power of two, 4 to 64.
    spad_rows, spad_banks
        Scratchpad: rows of `dim` int8; banks that can be read at once.
    acc_rows, acc_banks
        Accumulator: rows of `dim` int32; banks.
    queue_depth
        Commands that the dispatcher can leave waiting in front of each engine.
    semaphore_max
        Highest count of a semaphore; one more post is a fault.
    clock_hz
        Nominal clock, to turn cycles into seconds.
    bus_bytes, bus_latency_cycles, burst_bytes, burst_cycles
        DRAM bus: bytes a cycle, latency of a transfer, bytes a burst, extra cycles a burst.
    """

    name: str
    dim: int
    spad_rows: int
    spad_banks: int
    acc_rows: int
    acc_banks: int
    queue_depth: int
    semaphore_max: int
    clock_hz: int
    bus_bytes: int
    bus_latency_cycles: int
    burst_bytes: int
    burst_cycles: int

    def __post_init__(self) -> None:
        if self.dim not in (4, 8, 16, 32, 64):
            self._refuse("dim", self.dim, "use a power of two from 4 to 64")
        if not self.dim <= self.spad_rows <= MAX_SPAD_ROWS:
            self._refuse("spad_rows", self.spad_rows, f"use dim to {MAX_SPAD_ROWS}")
        if not 256 // self.dim <= self.acc_rows <= MAX_ACC_ROWS:
            self._refuse("acc_rows", self.acc_rows, f"use 256/dim to {MAX_ACC_ROWS}")
        for rows, banks in (("spad_rows", "spad_banks"), ("acc_rows", "acc_banks")):
            if getattr(self, banks) < 1 or getattr(self, rows) % getattr(self, banks):
                self._refuse(banks, getattr(self, banks), f"use a divisor of {rows}")
        for name in ("queue_depth", "semaphore_max", "clock_hz", "bus_bytes", "burst_bytes"):
            if getattr(self, name) < 1:
                self._refuse(name, getattr(self, name), "use at least 1")
        for name in ("bus_latency_cycles", "burst_cycles"):
            if getattr(self, name) < 0:
                self._refuse(name, getattr(self, name), "use at least 0")

    def _refuse(self, field: str, value: int, advice: str) -> None:
        raise InvalidTarget(f"ea config {self.name!r}: bad {field} ({value}); {advice}")

    @property
    def config_id(self) -> str:
        """Sixteen hex digits that change when any number does (start of a SHA-256)."""
        return hashlib.sha256(canonical_json(dataclasses.asdict(self))).hexdigest()[:16]

    @property
    def spad_bytes(self) -> int:
        """Size of the scratchpad."""
        return self.spad_rows * self.dim

    @property
    def acc_bytes(self) -> int:
        """Size of the accumulator memory."""
        return self.acc_rows * self.dim * 4

    @property
    def lut_rows(self) -> int:
        """Accumulator rows that hold one 256-entry table of ``vec.lut8``."""
        return 256 // self.dim

    def blocks(self, columns: int) -> int:
        """Return how many `dim`-wide blocks hold `columns` columns; the last may have a tail."""
        return -(-columns // self.dim)


def _config(name: str, dim: int, spad_kib: int, acc_kib: int) -> MachineConfig:
    return MachineConfig(
        name=name,
        dim=dim,
        spad_rows=spad_kib * 1024 // dim,
        spad_banks=4,
        acc_rows=acc_kib * 1024 // (4 * dim),
        acc_banks=2,
        queue_depth=16,
        semaphore_max=255,
        clock_hz=100_000_000,
        bus_bytes=dim,
        bus_latency_cycles=100,
        burst_bytes=16 * dim,
        burst_cycles=2,
    )


EA8 = _config("ea8", dim=8, spad_kib=64, acc_kib=16)
EA16 = _config("ea16", dim=16, spad_kib=256, acc_kib=64)
EA32 = _config("ea32", dim=32, spad_kib=1024, acc_kib=256)

CONFIGS: dict[str, MachineConfig] = {config.name: config for config in (EA8, EA16, EA32)}


def find_config(name: str) -> MachineConfig:
    """Return the configuration called `name`.

    Raises
    ------
    InvalidTarget
        No such configuration; the message lists those known.
    """
    try:
        return CONFIGS[name]
    except KeyError:
        known = ", ".join(CONFIGS)
        raise InvalidTarget(
            f"ea config: unknown name ({name[:80]!r}); use one of {known}"
        ) from None
