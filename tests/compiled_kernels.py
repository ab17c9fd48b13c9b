"""Kernels of ABI 1 in hand-written LLVM IR, for tests that need compiled code."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from farm.artifact import BuiltModule, ParamSpec, Signature
from farm.target import Target

TENSOR = "%T = type { ptr, i32, i32, i32, i8, i8, i16, ptr, ptr, i64 }\n"


def data_of(index):
    """IR that loads the data pointer of argument `index` into %d<index>."""
    return f"""
  %p{index} = getelementptr ptr, ptr %args, i64 {index}
  %t{index} = load ptr, ptr %p{index}
  %d{index} = load ptr, ptr %t{index}"""


def entry(name):
    """IR of the entry that every object has in the section of functions."""
    return f"""
@name_{name} = private constant [{len(name) + 1} x i8] c"{name}\\00"
@entry_{name} = constant {{ ptr, ptr }} {{ ptr @name_{name}, ptr @{name} }}, section
"farm_functions" @llvm.used = appending global [1 x ptr] [ptr @entry_{name}], section
"llvm.metadata"
"""


def function(name, count, body, outside, table):
    """IR of a function that checks the number of its arguments and then runs `body`."""
    return f"""{TENSOR}{outside}{table}
define i32 @{name}(ptr %args, i32 %n) nounwind {{
start:
  %right = icmp eq i32 %n, {count}
  br i1 %right, label %go, label %wrong
wrong:
  ret i32 1
go:{"".join(map(data_of, range(count)))}
{body}
}}
"""


# c[i] = a[i] + b[i], 4 x float32; an alignment below 16 of argument 0 is refused.
ADD = """
  %int = ptrtoint ptr %d0 to i64
  %low = and i64 %int, 15
  %aligned = icmp eq i64 %low, 0
  br i1 %aligned, label %work, label %refuse
refuse:
  ret i32 7
work:
  %a = load <4 x float>, ptr %d0, align 16
  %b = load <4 x float>, ptr %d1, align 4
  %c = fadd <4 x float> %a, %b
  store <4 x float> %c, ptr %d2, align 4
  ret i32 0"""


@pytest.fixture(scope="session")
def emit():
    """Compile LLVM IR text to an ELF object for a triple."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()

    def compile_ir(text, triple, features=""):
        machine = llvm.Target.from_triple(triple).create_target_machine(
            reloc="static" if triple.startswith("wasm") else "pic",
            opt=2,
            features=features,
            abiname="lp64d" if triple.startswith("riscv64") else "",
        )
        module = llvm.parse_assembly(text)
        module.triple = triple
        module.verify()
        return machine.emit_object(module)

    return compile_ir


@pytest.fixture(scope="session")
def built(emit):
    """Make a module of a function body: ``built(name, params, body)``."""

    def make(
        name,
        params,
        body,
        *,
        target="llvm",
        outside="",
        kind="device",
        text=None,
        format_name="elf-object",
    ):
        parsed = Target.parse(target)
        table = entry(name) if format_name == "elf-object" else ""
        text = text or function(name, len(params), body, outside, table)
        return BuiltModule(
            kind=kind,
            symbol=name,
            target=str(parsed),
            format=format_name,
            format_version=1,
            requires=parsed.requires,
            toolchain="test",
            signature=Signature(tuple(params)),
            data=emit(text, parsed.option("mtriple"), parsed.option("mattr") or ""),
        )

    return make


@pytest.fixture(scope="session")
def add_params():
    """The parameters of ADD."""
    return (
        ParamSpec("a", "float32", (4,), "input", 16),
        ParamSpec("b", "float32", (4,), "input"),
        ParamSpec("c", "float32", (4,), "output"),
    )


@pytest.fixture(scope="session")
def add_module(built, add_params):
    """The function ``add`` for this machine."""
    return built("add", add_params, ADD)


@pytest.fixture(scope="session")
def add_body():
    """The body of ``add``, for other targets."""
    return ADD
