"""The emulated accelerator: how fast its machine runs here.

Figures: ``gemm_small`` and ``gemm_large`` (int8 MAC/s with all checks, beside numpy's int32 and float32 matmul),
``instruction`` (ns, with all checks) and ``timing_only`` (instructions/s, with all checks and no data).
"""

from __future__ import annotations

import numpy as np
from support.figures import emit, median_s

from farm.ea.config import EA16
from farm.ea.isa import Engine, Gemm, Halt, Load, SetB, Space, Sync, Transfer, Vec, VecOp
from farm.ea.program import Program
from farm.runtime.ea.machine import CompiledMachine
from farm.runtime.ea.program import LoadedProgram

SAMPLES = 15
TILES = {"gemm_small": (16, 1, 1, 4000), "gemm_large": (256, 4, 8, 60)}
MIXED = 50_000


def program(*instructions) -> LoadedProgram:
    """Return a program that fills the scratchpad first."""
    fills = [
        Load(space=Transfer.SPAD_I8, row=4095 * part, rows=4095, cols=16, lstride=4095, fill=True)
        for part in range(3)
    ]
    fills.append(Load(space=Transfer.ACC_I32, row=0, rows=1024, cols=16, lstride=1024, fill=True))
    return LoadedProgram.of(Program(EA16, (), (), (*fills, *instructions, Halt())))


def numpy_macs(dtype: type, rows: int, columns: int, depth: int) -> float:
    """Return MAC/s of numpy for one such product."""
    a, b = np.ones((rows, depth), dtype), np.ones((depth, columns), dtype)
    time_s, _ = median_s(lambda: a @ b, SAMPLES)
    return rows * columns * depth / time_s


def gemms(machine: CompiledMachine) -> None:
    """Measure tiles of two sizes."""
    for name, (m, nt, kt, count) in TILES.items():
        gemm = Gemm(m=m, nt=nt, kt=kt, a=0, w=4096, c=0, aks=m, cns=m)
        loaded = program(*[gemm] * count)
        time_s, times = median_s(lambda loaded=loaded: machine.run(loaded, []), SAMPLES)
        macs = count * m * nt * kt * EA16.dim**2
        shape = (m, nt * EA16.dim, kt * EA16.dim)
        for peer, dtype in (("numpy int32", np.int32), ("numpy float32 (BLAS)", np.float32)):
            emit(
                name,
                macs / time_s,
                "MAC/s",
                goal=">= 9e9" if name == "gemm_large" else "none",
                samples=SAMPLES,
                lower_is_better=False,
                peer=peer,
                peer_value=numpy_macs(dtype, *shape),
                spread=[macs / each for each in times],
            )


def instructions(machine: CompiledMachine) -> None:
    """Measure what an instruction costs that moves next to nothing."""
    mixed = (
        SetB(reg=0, value=1),
        Sync(engine=Engine.LD),
        Load(space=Transfer.SPAD_I8, row=0, rows=1, cols=16, fill=True),
        Vec(op=VecOp.MOV, rows=1, dsp=Space.ACC, dst=0, s1sp=Space.ACC),
    )
    loaded = program(*mixed * (MIXED // len(mixed)))
    time_s, times = median_s(lambda: machine.run(loaded, []), SAMPLES)
    emit(
        "instruction",
        time_s / MIXED * 1e9,
        "ns",
        goal="<= 20",
        samples=SAMPLES,
        lower_is_better=True,
        spread=[each / MIXED * 1e9 for each in times],
    )
    time_s, times = median_s(lambda: machine.time(loaded), SAMPLES)
    emit(
        "timing_only",
        MIXED / time_s,
        "instructions/s",
        goal=">= 5e7",
        samples=SAMPLES,
        lower_is_better=False,
        spread=[MIXED / each for each in times],
    )


def main() -> None:
    """Measure all on one machine."""
    machine = CompiledMachine(EA16)
    gemms(machine)
    instructions(machine)


if __name__ == "__main__":
    main()
