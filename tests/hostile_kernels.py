"""Kernels ``name(x: int32[1]) -> y: int32[1]`` for this machine that behave badly, in LLVM IR."""

from __future__ import annotations

import llvmlite.binding as llvm

from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.target import Target

TRIPLE = "x86_64-linux-gnu"
TENSOR = "%T = type { ptr, i32, i32, i32, i8, i8, i16, ptr, ptr, i64 }\n"


def data_of(index):
    return f"""
  %p{index} = getelementptr ptr, ptr %args, i64 {index}
  %t{index} = load ptr, ptr %p{index}
  %d{index} = load ptr, ptr %t{index}"""


def function(name, count, body):
    return f"""{TENSOR}
@name_{name} = private constant [{len(name) + 1} x i8] c"{name}\\00"
@entry_{name} = constant {{ ptr, ptr }} {{ ptr @name_{name}, ptr @{name} }}, section "farm_functions"
@llvm.used = appending global [1 x ptr] [ptr @entry_{name}], section "llvm.metadata"
declare void @llvm.trap()
@text = private constant [6 x i8] c"noise\\0A"
define i32 @{name}(ptr %args, i32 %n) {{
start:{"".join(map(data_of, range(count)))}
{body}
}}
"""


def syscall(result, number, *arguments):
    """IR of a system call of x86-64 Linux."""
    registers = ("rdi", "rsi", "rdx", "r10", "r8", "r9")[: len(arguments)]
    constraints = ",".join(["={rax}", "0", *(f"{{{r}}}" for r in registers)])
    values = ", ".join(f"i64 {value}" for value in (number, *arguments))
    types = f'"{constraints},~{{rcx}},~{{r11}},~{{memory}}"'
    return f'  %{result} = call i64 asm sideeffect "syscall", {types}({values})\n'


MAP_POPULATED = 0x8022
"""Private, of no file, with its pages there at once."""

INCREMENT = """
  %value = load i32, ptr %d0
  %more = add i32 %value, 1
  store i32 %more, ptr %d1
  ret i32 0"""

BODIES = {
    "increment": INCREMENT,
    "segfault": "  store volatile i32 1, ptr null\n  ret i32 0",
    "trap": "  call void @llvm.trap()\n  unreachable",
    "spin": "  br label %again\nagain:\n  store volatile i32 1, ptr %d1\n  br label %again",
    "leave": syscall("x", 231, 3) + "  unreachable",
    # A grandchild in a session of its own that outlives the call and sleeps for ever.
    "orphan": syscall("a", 57)
    + "  %child = icmp eq i64 %a, 0\n  br i1 %child, label %first, label %done\nfirst:\n"
    + syscall("b", 112)
    + syscall("c", 57)
    + "  %grandchild = icmp eq i64 %c, 0\n"
    + "  br i1 %grandchild, label %sleep, label %end\nend:\n"
    + syscall("d", 231, 0)
    + "  unreachable\nsleep:\n"
    + syscall("e", 34)
    + "  br label %sleep\ndone:"
    + INCREMENT,
    # Takes 64 MiB after 64 MiB until something ends it.
    "eat_memory": "  br label %again\nagain:\n"
    + syscall("at", 9, 0, 1 << 26, 3, MAP_POPULATED, -1, 0)
    + "  br label %again",
    "chatter": "  %address = ptrtoint ptr @text to i64\n"
    + syscall("a", 1, 1, "%address", 6)
    + syscall("b", 1, 2, "%address", 6)
    + INCREMENT,
    # Prints x lines; a write that fails is no reason to stop.
    "flood": "  %address = ptrtoint ptr @text to i64\n  %lines = load i32, ptr %d0\n"
    + "  br label %again\nagain:\n  %left = phi i32 [%lines, %start], [%less, %again]\n"
    + syscall("a", 1, 1, "%address", 6)
    + "  %less = sub i32 %left, 1\n  %more_lines = icmp sgt i32 %less, 0\n"
    + "  br i1 %more_lines, label %again, label %done\ndone:"
    + INCREMENT,
    # Prints, and then never ends.
    "announce": "  %address = ptrtoint ptr @text to i64\n"
    + syscall("a", 1, 1, "%address", 6)
    + "  br label %again\nagain:\n  store volatile i32 1, ptr %d1\n  br label %again",
    "forge": "  %address = ptrtoint ptr @text to i64\n"
    + syscall("a", 1, 3, "%address", 6)
    + "  br label %again\nagain:\n  store volatile i32 1, ptr %d1\n  br label %again",
}


def artifact():
    """An artifact of the kernels above."""
    return artifact_of({name: function(name, 2, body) for name, body in BODIES.items()})


def artifact_of(texts):
    """An artifact of hand-written kernels ``name(x: int32[1]) -> y: int32[1]``: ``artifact_of({name: IR text})``."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    params = (ParamSpec("x", "int32", (1,), "input"), ParamSpec("y", "int32", (1,), "output"))
    target = Target.parse(f"llvm -mtriple={TRIPLE}")
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(reloc="pic", opt=1)
    modules = []
    for name, text in texts.items():
        module = llvm.parse_assembly(text)
        module.triple = TRIPLE
        module.verify()
        modules.append(
            BuiltModule(
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
        )
    return assemble(target, modules)
