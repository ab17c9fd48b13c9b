"""Loads and stores: addresses, and the shapes of access that vectorized loops give.

Owns: row-major addresses; contiguous, reversed, strided and scattered lanes; lanes that are masked off.

Invariant: a lane that is masked off reads nothing outside its buffer and writes nothing. An address is in its buffer
wherever it is used; the verifier has proved it, of masked lanes only under their condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from farm.codegen.llvm.context import LINE_BYTES, Context
from farm.codegen.llvm.halves import narrow, widen
from farm.codegen.llvm.linear import LANE, ZERO, Linear
from farm.codegen.llvm.types import I32, I64, PTR, element, memory_type, undefined, vector
from farm.ir.bounds import Interval, interval
from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import Expr, Load, Var

_NO_WRAP = ("nuw", "nsw")
MAX_STRIDE = 4  # farther apart, elements are loaded one by one


@dataclass(frozen=True, slots=True)
class Access:
    """One access, taken apart.

    Attributes
    ----------
    start
        Flat index in the first lane, as far as it is the same for all.
    stride
        How far apart neighbouring lanes are; 0 if `offsets` says it.
    offsets
        Flat index of each lane where they are not equally far apart, a vector; else None.
    guarded
        Whether lanes that are off may be outside the buffer.
    """

    buffer: Buffer
    start: Linear
    stride: int
    offsets: ir.Value | None
    guarded: bool


@dataclass
class Memory:
    """Emits loads and stores; `emit` computes indices."""

    context: Context
    emit: Callable[[Expr], ir.Value]

    def load(self, buffer: Buffer, indices: tuple[Expr, ...]) -> ir.Value:
        """Return an element, or a vector of them if the indices differ between lanes."""
        value, context = self._load(self._access(buffer, indices)), self.context
        if buffer.dtype.is_half:
            return widen(context.unit, context.builder, value, buffer.dtype)
        if buffer.dtype is not DType.BOOL:
            return value
        return context.builder.icmp_unsigned("!=", value, ir.Constant(value.type, 0))

    def row(self, loads: Sequence[Load]) -> ir.Value | None:
        """Return the elements of several loads, those of one lane next to each other, if they are so in memory.

        There are as many as loads if all lanes have the same, else as many times the lanes.
        """
        forms = [self._access(load.buffer, load.indices) for load in loads]
        first, count = forms[0], len(forms)
        if any(x.offsets is not None or x.guarded or x.buffer != first.buffer for x in forms):
            return None
        if first.stride not in (0, count) or any(x.stride != first.stride for x in forms):
            return None
        if any(x.start != first.start.plus(Linear(step)) for step, x in enumerate(forms)):
            return None
        lanes = self.context.lanes if first.stride else 1
        kind = vector(memory_type(first.buffer.dtype), count * lanes)
        pointer = self._pointer(Access(first.buffer, first.start, 1, None, guarded=False))
        return self.context.builder.load(pointer, typ=kind, align=_alignment(first))

    def copy(self, buffer: Buffer, indices: tuple[Expr, ...], source: Load) -> None:
        """Store elements of another buffer as they are in memory."""
        self._store(buffer, indices, self._load(self._access(source.buffer, source.indices)))

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], value: ir.Value) -> None:
        """Store an element, or those of all lanes that are on."""
        context = self.context
        if buffer.dtype.is_half:
            value = narrow(context.unit, context.builder, value, buffer.dtype)
        elif buffer.dtype is DType.BOOL:
            kind = memory_type(buffer.dtype)
            wide = isinstance(value.type, ir.VectorType)
            value = context.builder.zext(value, vector(kind, context.lanes if wide else 1))
        self._store(buffer, indices, value)

    def _store(self, buffer: Buffer, indices: tuple[Expr, ...], value: ir.Value) -> None:
        context, access = self.context, self._access(buffer, indices)
        varied = access.stride or access.offsets is not None
        if access.stride == 1:
            self._store_together(access, context.broadcast(value))
        elif varied or context.mask is not None:
            self._store_each(access, value)
        else:  # every lane stores here; the last one stays
            self._put(context.lane(value, context.lanes - 1), self._pointer(access), access)

    def sum(self, form: Linear) -> ir.Value:
        """Return the value of a form, a vector if it differs between lanes."""
        context, builder = self.context, self.context.builder
        lane = form.terms.get(LANE, 0)
        varying = [t for t in form.terms if t != LANE and context.varies(t)]
        uniform = form.without(LANE)
        for term in varying:
            uniform = uniform.without(term)
        total = self._uniform(uniform)
        if lane:
            steps = [ir.Constant(I64, _wrapped(lane * index)) for index in range(context.lanes)]
            ramp = ir.Constant(vector(I64, context.lanes), steps)
            total = builder.add(context.broadcast(total), ramp)
        for term in varying:
            part = context.broadcast(self.emit(term))
            if form.terms[term] != 1:
                part = builder.mul(part, ir.Constant(part.type, _wrapped(form.terms[term])))
            total = builder.add(context.broadcast(total), part)
        return total

    def _uniform(self, form: Linear) -> ir.Value:
        if not form.terms:
            return ir.Constant(I64, _wrapped(form.constant))
        flags = self._flags(form)
        total = self._variable(form, flags)
        if form.constant:
            total = self.context.builder.add(
                total, ir.Constant(I64, _wrapped(form.constant)), flags=flags
            )
        return total

    def _variable(self, form: Linear, flags: tuple[str, ...]) -> ir.Value:
        """Return the sum of a form's terms without its constant."""
        context, builder = self.context, self.context.builder
        fixed = all(isinstance(term, Var) for term in form.terms)
        key = ("sum", *form.terms.items()) if fixed else None
        if key and (found := context.recall(key)) is not None:
            return found
        total: ir.Value | None = None
        for term, coefficient in form.terms.items():
            value = self.emit(term)
            if coefficient != 1:
                factor = ir.Constant(I64, _wrapped(coefficient))
                value = builder.mul(value, factor, flags=flags)
            total = value if total is None else builder.add(total, value, flags=flags)
        assert total is not None
        return context.remember(key, total) if key else total

    def _flags(self, form: Linear) -> tuple[str, ...]:
        """Return LLVM's flags of a sum none of whose parts wraps around, as each is at least 0."""
        high = form.constant
        if high < 0:
            return ()
        for term, coefficient in form.terms.items():
            found = interval(term, self.context.sure)
            low, most = sorted((coefficient * found.low, coefficient * found.high))
            if low < 0:
                return ()
            high += most
        return _NO_WRAP if high <= DType.INT64.max else ()

    def _access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Access:
        context = self.context
        strides = tuple(math.prod(buffer.shape[axis + 1 :]) for axis in range(len(indices)))
        form = context.analysis.offset(indices, strides)
        guarded = context.mask is not None and not self._surely_inside(buffer, indices)
        if any(context.varies(term) for term in form.terms if term != LANE):
            return Access(buffer, ZERO, 0, self.sum(form), guarded)
        return Access(buffer, form.without(LANE), form.terms.get(LANE, 0), None, guarded)

    def _surely_inside(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        return all(
            interval(index, self.context.sure).within(Interval(0, extent - 1))
            for index, extent in zip(indices, buffer.shape, strict=True)
        )

    def _load(self, access: Access) -> ir.Value:
        kind = memory_type(access.buffer.dtype)
        if access.offsets is None and access.stride == 1:
            return self._load_together(access, kind)
        if access.offsets is None and not access.guarded:
            if access.stride == 0:
                return self._get(self._pointer(access), kind, access)
            if access.stride == -1:
                return self._reversed(access, kind)
            wide = self._strided(access, kind) if 1 < access.stride <= MAX_STRIDE else None
            if wide is not None:
                return wide
        elif access.stride == 0 and access.offsets is None:
            return self._load_if_any(access, kind)
        return self._load_each(access, kind)

    def _load_together(self, access: Access, kind: ir.Type) -> ir.Value:
        context, builder = self.context, self.context.builder
        wide = vector(kind, context.lanes)
        pointer, mask = self._pointer(access), context.mask
        if mask is None or not access.guarded:
            self._fetch_ahead(access, pointer, kind)
            return builder.load(pointer, typ=wide, align=_alignment(access))
        load = context.unit.intrinsic(
            "llvm.masked.load", [wide, PTR], wide, [PTR, I32, mask.type, wide]
        )
        align = ir.Constant(I32, _alignment(access))  # newer LLVMs turn it into an attribute
        return builder.call(load, [pointer, align, mask, ir.Constant(wide, 0)])

    def _fetch_ahead(self, access: Access, pointer: ir.Value, kind: ir.Type) -> None:
        """Fetch what will be loaded some time later; an address outside the buffer does nothing."""
        context, builder = self.context, self.context.builder
        if not context.ahead or access.buffer.name not in context.parameters:
            return
        fetch = context.unit.intrinsic("llvm.prefetch", [PTR], ir.VoidType(), [PTR, I32, I32, I32])
        size_bytes = access.buffer.dtype.size_bytes
        for first in range(0, context.lanes, max(1, LINE_BYTES // size_bytes)):
            index = ir.Constant(I64, context.ahead + first)
            there = element(builder, pointer, index, kind, inside=False)
            # of the two kinds of access, reading; into the cache next to the core; data
            builder.call(
                fetch, [there, ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)]
            )

    def _store_together(self, access: Access, value: ir.Value) -> None:
        context, builder = self.context, self.context.builder
        pointer = self._pointer(access)
        if context.mask is None:
            size_bytes = access.buffer.dtype.size_bytes * context.lanes
            align = _alignment(access, base=LINE_BYTES)
            if access.buffer.name in context.streamed and align >= min(size_bytes, LINE_BYTES):
                store = builder.store(value, pointer, align=align)
                store.set_metadata("nontemporal", context.unit.nontemporal())
                return
            builder.store(value, pointer, align=_alignment(access))
            return
        store = context.unit.intrinsic(
            "llvm.masked.store",
            [value.type, PTR],
            ir.VoidType(),
            [value.type, PTR, I32, context.mask.type],
        )
        align = ir.Constant(I32, _alignment(access))
        builder.call(store, [value, pointer, align, context.mask])

    def _load_if_any(self, access: Access, kind: ir.Type) -> ir.Value:
        """Load what all lanes share, from the buffer's start if no lane is on."""
        builder = self.context.builder
        offset = self._uniform(access.start)
        offset = builder.select(self.context.any_lane(), offset, ir.Constant(I64, 0))
        pointer = element(builder, self.context.pointers[access.buffer.name], offset, kind)
        return self._get(pointer, kind, access)

    def _reversed(self, access: Access, kind: ir.Type) -> ir.Value:
        lanes = self.context.lanes
        first = Access(access.buffer, access.start.plus(Linear(1 - lanes)), 1, None, guarded=False)
        return self._picked(self._load_together(first, kind), range(lanes - 1, -1, -1))

    def _strided(self, access: Access, kind: ir.Type) -> ir.Value | None:
        """Load whole rows of `stride` elements and pick one of each; None if they are not all in the buffer.

        Rows start at a multiple of the stride where that is known, so that accesses to the parts of one row share it.
        """
        lanes, stride = self.context.lanes, access.stride
        skip = access.start.constant % stride
        start = access.start.plus(Linear(-skip))
        found = self.context.analysis.range_of(start)
        if found.low < 0 or found.high + lanes * stride > access.buffer.elements:
            return None
        pointer = self._pointer(Access(access.buffer, start, 1, None, guarded=False))
        row = self.context.builder.load(
            pointer, typ=vector(kind, lanes * stride), align=_alignment(access, start)
        )
        return self._picked(row, range(skip, lanes * stride, stride))

    def _picked(self, value: ir.Value, lanes: range) -> ir.Value:
        picks = [ir.Constant(I32, lane) for lane in lanes]
        mask = ir.Constant(vector(I32, len(picks)), picks)
        nothing = undefined(value.type)
        return self.context.builder.shuffle_vector(value, nothing, mask)

    def _load_each(self, access: Access, kind: ir.Type) -> ir.Value:
        """Load lane by lane; lanes that are off from the buffer's start if they may be outside it."""
        context, builder = self.context, self.context.builder
        offsets = access.offsets
        if access.guarded:
            offsets = self._offsets(access)
            offsets = builder.select(context.mask, offsets, ir.Constant(offsets.type, 0))
        result = undefined(vector(kind, context.lanes))
        for lane in range(context.lanes):
            pointer = self._lane_pointer(access, offsets, lane, kind)
            value = self._get(pointer, kind, access)
            result = builder.insert_element(result, value, ir.Constant(I32, lane))
        return result

    def _store_each(self, access: Access, value: ir.Value) -> None:
        """Store lane by lane, in order."""
        context, builder = self.context, self.context.builder
        kind = memory_type(access.buffer.dtype)
        for lane in range(context.lanes):
            done = None
            if context.mask is not None:
                on, done = (builder.append_basic_block(name) for name in ("lane", "off"))
                builder.cbranch(context.lane(context.mask, lane), on, done)
                builder.position_at_end(on)
            with context.region():
                pointer = self._lane_pointer(access, access.offsets, lane, kind)
                self._put(context.lane(value, lane), pointer, access)
            if done is not None:
                builder.branch(done)
                builder.position_at_end(done)

    def _offsets(self, access: Access) -> ir.Value:
        if access.offsets is not None:
            return access.offsets
        return self.context.broadcast(
            self.sum(access.start.plus(Linear(0, {LANE: access.stride} if access.stride else {})))
        )

    def _lane_pointer(
        self, access: Access, offsets: ir.Value | None, lane: int, kind: ir.Type
    ) -> ir.Value:
        if offsets is None:
            start = access.start.plus(Linear(access.stride * lane))
            return self._pointer(Access(access.buffer, start, 0, None, access.guarded))
        base = self.context.pointers[access.buffer.name]
        return element(self.context.builder, base, self.context.lane(offsets, lane), kind)

    def _pointer(self, access: Access) -> ir.Value:
        """Return a pointer to `access.start`; its variable part is computed once in a region."""
        context, builder, form = self.context, self.context.builder, access.start
        kind = memory_type(access.buffer.dtype)
        pointer = context.pointers[access.buffer.name]
        flags = self._flags(form)
        inside = bool(flags) and not access.guarded  # then each partial sum is inside as well
        if form.terms:
            fixed = all(isinstance(term, Var) for term in form.terms)
            key = ("pointer", access.buffer.name, *form.terms.items()) if fixed else None
            found = context.recall(key) if key else None
            if found is None:
                offset = self._variable(form, flags)
                found = element(builder, pointer, offset, kind, inside=inside)
                if key:
                    context.remember(key, found)
            pointer = found
        if form.constant:
            index = ir.Constant(I64, _wrapped(form.constant))
            pointer = element(builder, pointer, index, kind, inside=inside)
        return pointer

    def _get(self, pointer: ir.Value, kind: ir.Type, access: Access) -> ir.Value:
        size = access.buffer.dtype.size_bytes
        return self.context.builder.load(pointer, typ=kind, align=size)

    def _put(self, value: ir.Value, pointer: ir.Value, access: Access) -> None:
        self.context.builder.store(value, pointer, align=access.buffer.dtype.size_bytes)


def _alignment(access: Access, start: Linear | None = None, base: int = 1) -> int:
    """Return the alignment in bytes that an access is sure to have, in a buffer that is aligned to `base`."""
    form = access.start if start is None else start
    size = access.buffer.dtype.size_bytes
    known = math.gcd(
        max(access.buffer.align_bytes, base),
        *(size * n for n in (form.constant, *form.terms.values())),
    )
    return max(known & -known, 1)


def _wrapped(value: int) -> int:
    """Return an integer modulo 2**64, as LLVM reads it."""
    low = value & ((1 << 64) - 1)
    return low - (1 << 64) if low >> 63 else low
