"""Shared: a dense layer written by hand, with its reference; random instructions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from farm.ea.builder import Imm, ProgramBuilder, acc, spad
from farm.ea.isa import Gemm, Load, Source, Space, Store, Transfer, Vec, VecOp

if TYPE_CHECKING:
    from farm.ea.config import MachineConfig
    from farm.ea.program import Program


@dataclass(frozen=True)
class Dense:
    """``out = clamp(rq(A @ W + bias, multiplier, shift), 0, 127)`` of one size."""

    config: MachineConfig
    m: int
    n: int
    k: int

    def program(self, m_tile: int = 16, k_chunk_blocks: int = 3) -> Program:
        """Return double-buffered code: all of W resident, A and C in two buffers each."""
        b, dim = ProgramBuilder(self.config), self.config.dim
        nb, kb = self.config.blocks(self.n), self.config.blocks(self.k)
        a, w, bias, mult, shift, out = map(b.arg, ("A", "W", "bias", "mult", "shift", "out"))
        full, afree, cfull, cfree, ofull, ofree = map(
            b.semaphore, ("full", "afree", "cfull", "cfree", "ofull", "ofree")
        )
        bias_at, scale_at = acc(self.config.acc_rows - 3 * nb), acc(self.config.acc_rows - 2 * nb)
        b.load(bias_at, bias, rows=1, cols=self.n, dstride=0, lstride=1)
        b.load(scale_at, mult, rows=1, cols=self.n, dstride=0, lstride=2)
        b.load(scale_at + 1, shift, rows=1, cols=self.n, dstride=0, lstride=2)
        w_at = {}
        a_buffers = [spad(0), spad(m_tile * kb)]
        o_buffers = [spad(2 * m_tile * kb), spad(2 * m_tile * kb + m_tile * nb)]
        top = spad(2 * m_tile * (kb + nb))
        chunks = range(0, kb, k_chunk_blocks)
        for first in chunks:
            blocks = min(k_chunk_blocks, kb - first)
            k0, rows = first * dim, blocks * dim
            used = min(rows, self.k - k0)
            w_at[first] = top
            if used < rows:
                b.fill(top + used, rows=rows - used, cols=self.n, lstride=rows)
            b.load(top, w, rows=used, cols=self.n, dstride=self.n, offset=k0 * self.n, lstride=rows)
            top += rows * nb
        for tile, m0 in enumerate(range(0, self.m, m_tile)):
            m, odd, reuse = min(m_tile, self.m - m0), tile % 2, tile >= 2
            a_at, o_at, c_at = a_buffers[odd], o_buffers[odd], acc(odd * m_tile * nb)
            b.load(
                a_at,
                a,
                rows=m,
                cols=self.k,
                dstride=self.k,
                offset=m0 * self.k,
                lstride=m,
                wait=[afree] if reuse else [],
                post=[full],
            )
            for first in chunks:
                last = first + k_chunk_blocks >= kb
                start = [full] + ([cfree] if reuse else [])
                b.gemm(
                    c_at,
                    a_at + first * m,
                    w_at[first],
                    m=m,
                    nt=nb,
                    kt=min(k_chunk_blocks, kb - first),
                    aks=m,
                    cns=m,
                    accumulate=first > 0,
                    wait=start if first == 0 else [],
                    post=[afree, cfull] if last else [],
                )
            for block in range(nb):
                c = c_at + block * m
                b.vec(VecOp.ADD, c, c, bias_at + block, rows=m, wait=[cfull] if block == 0 else [])
                b.vec(VecOp.RQ, c, c, scale_at + 2 * block, rows=m)
            b.vec(
                VecOp.MAX,
                o_at,
                c_at,
                Imm(0),
                rows=m * nb,
                wait=[ofree] if reuse else [],
                post=[ofull, cfree],
            )
            b.store(
                out,
                o_at,
                rows=m,
                cols=self.n,
                dstride=self.n,
                offset=m0 * self.n,
                lstride=m,
                wait=[ofull],
                post=[ofree],
            )
        return b.build()

    def arrays(self, seed: int) -> list[np.ndarray]:
        """Return random A, W, bias, multiplier, shift, and an output full of a wrong value."""
        rng = np.random.default_rng(seed)
        return [
            rng.integers(-128, 128, (self.m, self.k), dtype=np.int8),
            rng.integers(-128, 128, (self.k, self.n), dtype=np.int8),
            rng.integers(-(1 << 16), 1 << 16, self.n, dtype=np.int32),
            rng.integers(1 << 30, (1 << 31) - 1, self.n, dtype=np.int32),
            rng.integers(38, 43, self.n, dtype=np.int32),
            np.full((self.m, self.n), -77, np.int8),
        ]

    def expected(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Return the output in plain 64-bit integers."""
        a, w, bias, mult, shift = (array.astype(np.int64) for array in arrays[:5])
        scaled = ((a @ w + bias) * mult + (1 << (shift - 1))) >> shift
        return np.clip(scaled, 0, 127).astype(np.int8)


def random_load(rng: random.Random) -> Load:
    space, fill = rng.choice(list(Transfer)), rng.random() < 0.2
    rows, cols = rng.randint(1, 6), rng.randint(1, 14)
    return Load(
        space=space,
        row=rng.randint(0, 30),
        rows=rows,
        cols=cols,
        lstride=rng.randint(rows, 10),
        dstride=0 if fill else 4 * rng.randint(0, 10) + (space is not Transfer.ACC_I32),
        offset=0 if fill else 4 * rng.randint(0, 20) + (space is not Transfer.ACC_I32),
        fill=fill and space is not Transfer.ACC_I8,
    )


def random_store(rng: random.Random) -> Store:
    space = rng.choice([Transfer.SPAD_I8, Transfer.ACC_I32])
    return Store(
        space=space,
        arg=0,
        row=rng.randint(0, 30),
        rows=rng.randint(1, 5),
        cols=rng.randint(1, 14),
        lstride=rng.randint(0, 10),
        dstride=4 * rng.randint(1, 16),
        offset=4 * rng.randint(0, 20),
        saturate=space is Transfer.ACC_I32 and rng.random() < 0.5,
    )


def random_gemm(rng: random.Random) -> Gemm:
    m = rng.randint(1, 6)
    return Gemm(
        m=m,
        nt=rng.randint(1, 3),
        kt=rng.randint(1, 3),
        a=rng.randint(0, 20),
        w=rng.randint(0, 28),
        c=rng.randint(0, 60),
        aks=rng.randint(0, 8),
        cns=rng.randint(m, 9),
        astep=rng.randint(0, 3),
        accumulate=rng.random() < 0.5,
    )


def random_vec(rng: random.Random) -> Vec:
    op, source = rng.choice(list(VecOp)), rng.choice(list(Source))
    if op in (VecOp.MOV, VecOp.WIDEN, VecOp.RSUM, VecOp.RMAX, VecOp.LUT8):
        source = Source.ROW
    row_operand = source is Source.ROW and op not in (
        VecOp.MOV,
        VecOp.WIDEN,
        VecOp.RSUM,
        VecOp.RMAX,
    )
    splat = op is VecOp.SPLAT
    return Vec(
        op=op,
        rows=rng.randint(1, 6),
        dsp=rng.choice(list(Space)),
        dst=rng.randint(0, 12),
        s1sp=Space.SPAD if splat else rng.choice(list(Space)),
        s1=0 if splat else rng.randint(0, 12),
        source=source,
        s2=rng.randint(0, 14) if row_operand or source is Source.REG else 0,
        dinc=rng.randint(0, 3),
        sinc=0 if splat else rng.randint(0, 3),
        s2inc=rng.randint(0, 1) if row_operand and op is not VecOp.LUT8 else 0,
        imm=rng.randint(-300, 300) if source is Source.IMM or op is VecOp.RQ else 0,
    )


_MAKERS = {Load: random_load, Store: random_store, Gemm: random_gemm, Vec: random_vec}


@pytest.fixture
def random_instruction():
    """Make a random instruction of a class for a small machine; not all are legal."""
    return lambda kind, rng: _MAKERS[kind](rng)


@pytest.fixture
def dense() -> type[Dense]:
    return Dense
