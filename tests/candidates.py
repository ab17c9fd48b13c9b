"""Candidates of the function ``twice(x: float32[64, 32]) -> y: float32[64, 32]``, right and wrong in many ways."""

from __future__ import annotations

import ctypes
import platform
import struct

import llvmlite.binding as llvm
import pytest

from farm import te
from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.target import Target

ROWS, COLUMNS = 64, 32
SHAPE = (ROWS, COLUMNS)
COUNT = ROWS * COLUMNS
TARGET = "llvm -mtriple=x86_64-linux-gnu"


def twice(name="twice"):
    """The function, in the farm's own language."""
    x = te.placeholder(SHAPE, "float32", name="x")
    return te.function(name, [x, te.compute(SHAPE, lambda i, j: x[i, j] * 2.0, name="y")])


def loop(first, last, factor="2.0", repeats="1", also=""):
    """IR that does ``y[i] = factor * x[i]`` for a range, `repeats` times over."""
    return f"""  br label %outer
outer:
  %turn = phi i64 [0, %start], [%turns, %outer_next]
  br label %again
again:
  %i = phi i64 [{first}, %outer], [%next, %again]
  %from = getelementptr float, ptr %x, i64 %i
  %value = load volatile float, ptr %from
  %product = fmul float %value, {factor}
  %to = getelementptr float, ptr %y, i64 %i
  store float %product, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {last}
  br i1 %more, label %again, label %outer_next
outer_next:
  %turns = add i64 %turn, 1
  %once_more = icmp slt i64 %turns, {repeats}
  br i1 %once_more, label %outer, label %done
done:
{also}  ret i32 0
"""


ONLY_ONCE = f"""  %calls = load i64, ptr @calls
  %called = add i64 %calls, 1
  store i64 %called, ptr @calls
  %tired = icmp sgt i64 %calls, 4
  br i1 %tired, label %leave, label %work
leave:
  ret i32 0
work:
{loop(0, COUNT).replace("%start]", "%work]")}"""

LAZY = f"""  %last_from = getelementptr float, ptr %x, i64 {COUNT - 1}
  %last = load volatile float, ptr %last_from
  %last_twice = fmul float %last, 2.0
  %there_at = getelementptr float, ptr %y, i64 {COUNT - 1}
  %there = load volatile float, ptr %there_at
  %is_there = fcmp oeq float %there, %last_twice
  br i1 %is_there, label %leave, label %work
leave:
  ret i32 0
work:
{loop(0, COUNT, repeats="200").replace("%start]", "%work]")}"""

SELDOM = ONLY_ONCE.replace(
    "  %tired = icmp sgt i64 %calls, 4\n",
    "  %part = and i64 %calls, 63\n  %late = icmp sgt i64 %calls, 4\n"
    "  %odd = icmp ne i64 %part, 0\n  %tired = and i1 %late, %odd\n",
)

BODIES = {
    "right": loop(0, COUNT),
    "half": loop(0, COUNT // 2),
    "zeros": loop(0, COUNT, factor="0.0"),
    "row": loop(0, COUNT, also="  store float 7.0, ptr %y\n"),
    "last": loop(0, COUNT - 1),
    "before": loop(-1, COUNT),
    "behind": loop(0, COUNT + 1),
    "input": loop(0, COUNT, also="  store float 7.0, ptr %x\n"),
    "once": ONLY_ONCE,
    "lazy": LAZY,
    "seldom": SELDOM,
    "crash": "  store volatile i32 1, ptr null\n  ret i32 0\n",
    "hang": "  br label %again\nagain:\n  store volatile i32 1, ptr %y\n  br label %again\n",
    "slow": loop(0, COUNT, repeats="3000"),
    "slower": loop(0, COUNT, repeats="100000"),
}


def syscall(result, number, *arguments):
    """IR of a system call of x86-64 Linux."""
    registers = ("rdi", "rsi", "rdx", "r10")[: len(arguments)]
    constraints = ",".join(["={rax}", "0", *(f"{{{r}}}" for r in registers)])
    values = ", ".join(f"i64 {value}" for value in (number, *arguments))
    types = f'"{constraints},~{{rcx}},~{{r11}},~{{memory}}"'
    return f'  %{result} = call i64 asm sideeffect "syscall", {types}({values})\n'


STANDING_CLOCK = bytes.fromhex("48c706e803000048c746080000000031c0c3")
"""x86-64: the time is 1000 s, always."""


def timer_patch():
    """IR that puts a clock that stands still in the place of the kernel's own (vDSO), and then does its work."""
    libc = ctypes.CDLL(None)
    libc.getauxval.restype = ctypes.c_ulong
    patches = ""
    for place in _clock_places(ctypes.string_at(libc.getauxval(_AT_SYSINFO_EHDR), 8192)):
        patches += f"  %at{place} = add i64 %vdso, {place}\n"
        patches += f"  %to{place} = inttoptr i64 %at{place} to ptr\n"
        for index, byte in enumerate(STANDING_CLOCK):
            patches += f"  %p{place}_{index} = getelementptr i8, ptr %to{place}, i64 {index}\n"
            patches += f"  store volatile i8 {byte}, ptr %p{place}_{index}\n"
    # The process's table of facts says where the vDSO is.
    return (
        "  %path = ptrtoint ptr @auxv to i64\n  %into = ptrtoint ptr @block to i64\n"
        + syscall("fd", 2, "%path", 0, 0)
        + syscall("got", 0, "%fd", "%into", 1024)
        + f"""  br label %search
search:
  %k = phi i64 [0, %start], [%k_next, %search]
  %entry = getelementptr {{ i64, i64 }}, ptr @block, i64 %k
  %kind = load i64, ptr %entry
  %k_next = add i64 %k, 1
  %is_it = icmp eq i64 %kind, {_AT_SYSINFO_EHDR}
  br i1 %is_it, label %found, label %search
found:
  %value_at = getelementptr {{ i64, i64 }}, ptr %entry, i64 0, i32 1
  %vdso = load i64, ptr %value_at
"""
        + syscall("opened", 10, "%vdso", 8192, 7)
        + patches
        + loop(0, COUNT).replace("%start]", "%found]")
    )


_AT_SYSINFO_EHDR = 33


def _clock_places(image):
    """Where ``clock_gettime`` is in an ELF image of 64 bits: offsets of its symbols."""
    sections_at, size, count = (
        *struct.unpack_from("<Q", image, 40),
        *struct.unpack_from("<HH", image, 58),
    )
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", image, sections_at + i * size) for i in range(count)
    ]
    symbols = next(it for it in headers if it[1] == 11)  # SHT_DYNSYM
    strings = headers[symbols[6]]
    places = set()
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", image, at)
        text = image[strings[4] + name :].partition(b"\0")[0]
        if text in (b"clock_gettime", b"__vdso_clock_gettime"):
            places.add(value)
    return sorted(places)


def source(name, body):
    """A whole object of the farm's calling convention."""
    return f"""@auxv = private constant [16 x i8] c"/proc/self/auxv\\00"
@block = private global [4096 x i8] zeroinitializer, align 16
@calls = private global i64 0
@name_{name} = private constant [{len(name) + 1} x i8] c"{name}\\00"
@entry_{name} = constant {{ ptr, ptr }} {{ ptr @name_{name}, ptr @{name} }}, section "farm_functions"
@llvm.used = appending global [1 x ptr] [ptr @entry_{name}], section "llvm.metadata"
define i32 @{name}(ptr %args, i32 %n) {{
start:
  %p0 = getelementptr ptr, ptr %args, i64 0
  %t0 = load ptr, ptr %p0
  %x = load ptr, ptr %t0
  %p1 = getelementptr ptr, ptr %args, i64 1
  %t1 = load ptr, ptr %p1
  %y = load ptr, ptr %t1
{body}}}
"""


def artifact(name, body):
    """An artifact of one candidate for this machine."""
    if platform.machine() != "x86_64":
        pytest.skip("needs an x86-64 host: the candidates are its code")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    machine = llvm.Target.from_triple("x86_64-linux-gnu").create_target_machine(reloc="pic", opt=1)
    module = llvm.parse_assembly(source(name, body))
    module.triple = "x86_64-linux-gnu"
    module.verify()
    target = Target.parse(TARGET)
    params = (ParamSpec("x", "float32", SHAPE, "input"), ParamSpec("y", "float32", SHAPE, "output"))
    built = BuiltModule(
        kind="device",
        symbol=name,
        target=str(target),
        format="elf-object",
        format_version=1,
        requires=target.requires,
        toolchain="test",
        signature=Signature(params),
        data=machine.emit_object(module),
    )
    return assemble(target, [built])
