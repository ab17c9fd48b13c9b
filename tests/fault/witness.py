"""Evidence that no two runs overlapped on one device, written by the kernels themselves.

The kernel ``witness(x: int32[3]) -> y: int32[1]`` takes a file lock beside its agent's work folder, which the system
takes from it when its process dies, however it dies, and never earlier. If another process has the lock, two runs
overlap: it writes that down. It also writes when it began and when it ended. It returns ``x[0] + 1``.

    x[0]   number of the job
    x[1]   how often it sleeps for 10 ms
    x[2]   1: print a letter after each sleep, in the order of the alphabet, again and again

It runs without a sandbox, which would hide the file, and on agents with one device, whose file it is. It finds the
folder of its agent through its standard output, a pipe in the folder of its session; the paths of all agents' folders
have one length.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import llvmlite.binding as llvm

from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.target import Target

TICK_S = 0.01
LETTERS = b"abcdefghijklmnopqrstuvwxyz"
TARGET = "llvm -mtriple=x86_64-linux-gnu"
FILE = "/witness"  # eight bytes, as many as one store writes
START, END, OVERLAP = 1, 2, 9

_RECORD = struct.Struct("<qqqq")
_READLINK, _OPEN, _FLOCK, _WRITE, _CLOSE, _SLEEP, _CLOCK, _PID = 89, 2, 73, 1, 3, 35, 228, 39
_APPEND = 0o2000 | 0o100 | 1
_LOCK = 4 | 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a kernel wrote down; `at` is in seconds of the host's steady clock."""

    kind: int
    job: int
    at: float
    pid: int


def read(folder) -> list[Entry]:
    """Return what the kernels of an agent wrote, in order."""
    path = folder / FILE[1:]
    data = path.read_bytes() if path.exists() else b""
    return [Entry(kind, job, ns / 1e9, pid) for kind, job, ns, pid in _RECORD.iter_unpack(data)]


def overlaps(entries) -> list[Entry]:
    """Return every entry of a run that found another one still running."""
    return [entry for entry in entries if entry.kind == OVERLAP]


def runs_of(entries, job) -> tuple[int, int]:
    """Return how often a job's kernel began, and how often it came to its end."""
    kinds = [entry.kind for entry in entries if entry.job == job]
    return kinds.count(START), kinds.count(END)


def artifact(folder_length: int):
    """Return the artifact of `witness` for agents whose folders' paths have this length."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    params = (ParamSpec("x", "int32", (3,), "input"), ParamSpec("y", "int32", (1,), "output"))
    target = Target.parse(TARGET)
    machine = llvm.Target.from_triple("x86_64-linux-gnu").create_target_machine(reloc="pic", opt=1)
    module = llvm.parse_assembly(_text(folder_length))
    module.triple = "x86_64-linux-gnu"
    module.verify()
    built = BuiltModule(
        kind="device",
        symbol="witness",
        target=str(target),
        format="elf-object",
        format_version=1,
        requires=target.requires,
        toolchain="test",
        signature=Signature(params),
        data=machine.emit_object(module),
    )
    return assemble(target, [built])


def _call(result: str, number: int, *arguments: object) -> str:
    registers = ("rdi", "rsi", "rdx", "r10")[: len(arguments)]
    constraints = ",".join(["={rax}", "0", *(f"{{{it}}}" for it in registers)])
    values = ", ".join(f"i64 {value}" for value in (number, *arguments))
    types = f'"{constraints},~{{rcx}},~{{r11}},~{{memory}}"'
    return f'  %{result} = call i64 asm sideeffect "syscall", {types}({values})\n'


def _note(name: str, kind: str) -> str:
    """IR that appends an entry; `kind` is a value."""
    return (
        _call(f"{name}.c", _CLOCK, 1, "%time")
        + f"""
  %{name}.s = load i64, ptr %times
  %{name}.n = load i64, ptr %timens
  %{name}.m = mul i64 %{name}.s, 1000000000
  %{name}.t = add i64 %{name}.m, %{name}.n
  store i64 {kind}, ptr %entry
  store i64 %{name}.t, ptr %entryt
"""
        + _call(f"{name}.w", _WRITE, "%file", "%entryi", _RECORD.size)
    )


def _text(length: int) -> str:
    suffix = int.from_bytes(FILE.encode(), "little")
    return f"""
@name = private constant [8 x i8] c"witness\\00"
@self = private constant [16 x i8] c"/proc/self/fd/1\\00"
@entry_witness = constant {{ ptr, ptr }} {{ ptr @name, ptr @witness }}, section "farm_functions"
@llvm.used = appending global [1 x ptr] [ptr @entry_witness], section "llvm.metadata"
define i32 @witness(ptr %args, i32 %n) {{
start:
  %a = load ptr, ptr %args
  %x = load ptr, ptr %a
  %args1 = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %args1
  %y = load ptr, ptr %b
  %job32 = load i32, ptr %x
  %job = sext i32 %job32 to i64
  %x1 = getelementptr i32, ptr %x, i64 1
  %ticks = load i32, ptr %x1
  %x2 = getelementptr i32, ptr %x, i64 2
  %prints = load i32, ptr %x2
  %path = alloca [512 x i8]
  %pathi = ptrtoint ptr %path to i64
  %times = alloca [2 x i64]
  %time = ptrtoint ptr %times to i64
  %timens = getelementptr i64, ptr %times, i64 1
  %entry = alloca [4 x i64]
  %entryi = ptrtoint ptr %entry to i64
  %entryj = getelementptr i64, ptr %entry, i64 1
  %entryt = getelementptr i64, ptr %entry, i64 2
  %entryp = getelementptr i64, ptr %entry, i64 3
  %letter = alloca [2 x i8]
  %letteri = ptrtoint ptr %letter to i64
  %line = getelementptr i8, ptr %letter, i64 1
  store i8 10, ptr %line
  %selfi = ptrtoint ptr @self to i64
{_call("link", _READLINK, "%selfi", "%pathi", 500)}
  %tail = getelementptr i8, ptr %path, i64 {length}
  store i64 {suffix}, ptr %tail, align 1
  %zero = getelementptr i8, ptr %path, i64 {length + len(FILE)}
  store i8 0, ptr %zero
{_call("file", _OPEN, "%pathi", _APPEND, 0o600)}
  %opened = icmp sge i64 %file, 0
  br i1 %opened, label %open, label %broken
broken:
  ret i32 3
open:
{_call("pid", _PID)}
  store i64 %job, ptr %entryj
  store i64 %pid, ptr %entryp
{_call("locked", _FLOCK, "%file", _LOCK)}
  %alone = icmp eq i64 %locked, 0
  %kind = select i1 %alone, i64 {START}, i64 {OVERLAP}
{_note("begin", "%kind")}
  br label %again
again:
  %i = phi i32 [0, %open], [%next, %slept]
  %more = icmp slt i32 %i, %ticks
  br i1 %more, label %sleep, label %done
sleep:
  store i64 0, ptr %times
  store i64 {int(TICK_S * 1e9)}, ptr %timens
{_call("nap", _SLEEP, "%time", 0)}
  %printing = icmp eq i32 %prints, 1
  br i1 %printing, label %print, label %slept
print:
  %place = urem i32 %i, {len(LETTERS)}
  %code = add i32 %place, {LETTERS[0]}
  %byte = trunc i32 %code to i8
  store i8 %byte, ptr %letter
{_call("told", _WRITE, 1, "%letteri", 1)}
  br label %slept
slept:
  %next = add i32 %i, 1
  br label %again
done:
{_note("finish", str(END))}
{_call("closed", _CLOSE, "%file")}
  %answer = add i32 %job32, 1
  store i32 %answer, ptr %y
  ret i32 0
}}
"""
