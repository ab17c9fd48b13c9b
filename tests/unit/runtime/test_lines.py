"""Lines of compiled functions, and what a process says that a kernel ends."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import farm.te as te
from farm.artifact import assemble
from farm.artifact.artifact import Artifact
from farm.codegen import compile_function
from farm.errors import InvalidTarget
from farm.ir import parse, serialise
from farm.ir.printer import line_numbers, print_function
from farm.ir.stmt import Store, walk
from farm.ops import matmul
from farm.ops.schedules import scheduled
from farm.runtime.lines import line_rows
from farm.target import Target

HERE = Target.parse("llvm")
LINES = Target.parse(f"{HERE} -debug=lines")


def product():
    a, b = (te.placeholder((24, 32), name="a"), te.placeholder((32, 16), name="b"))
    return parse(serialise(scheduled(te.function("product", [a, b, matmul(a, b)]), HERE)))


def test_option_is_part_of_the_target_and_asks_nothing_of_a_device():
    assert (LINES.option("debug"), LINES.requires, LINES.family) == (
        "lines",
        HERE.requires,
        HERE.family,
    )
    assert LINES.id != HERE.id
    with pytest.raises(InvalidTarget, match="use -debug=lines"):
        Target.parse("llvm -debug=all")
    with pytest.raises(InvalidTarget, match="has no lines"):
        compile_function(
            serialise(product()), "device", Target.parse("llvm -mtriple=wasm32-wasi -debug=lines")
        )


def test_numbers_are_those_of_the_printed_lines():
    function = product()
    lines, numbers = print_function(function).splitlines(), line_numbers(function)
    stores = [stmt for stmt in walk(function.body) if isinstance(stmt, Store)]
    assert len(stores) > 4
    for store in stores:
        assert lines[numbers[id(store)] - 1].strip().startswith(f"{store.buffer.name}[")


def test_rows_name_lines_of_the_printed_function_and_only_where_asked_for():
    pytest.importorskip("elftools", reason="pyelftools is missing: install kernel-farm[debug]")
    function = product()
    plain, lined = (compile_function(serialise(function), "device", t) for t in (HERE, LINES))
    (without,), (section,) = (assemble(t, [m]).sections for t, m in ((HERE, plain), (LINES, lined)))
    assert line_rows(without, 0x1000) == []
    rows = line_rows(section, 0x1000)
    addresses = [address for address, _ in rows]
    assert addresses == sorted(addresses)
    stores = {line_numbers(function)[id(s)] for s in walk(function.body) if isinstance(s, Store)}
    said = {int(text.strip().rpartition(":")[2]) for _, text in rows if text}
    assert len(said & stores) > 3
    assert all(
        text.startswith("\nfarm-crash: product at product.func:") for _, text in rows if text
    )
    damaged = replace(section, data=section.data.replace(b".debug_line", b".debug_lin\0"))
    assert line_rows(damaged, 0) == []


def test_signal_still_ends_the_process_which_says_the_line_first(tmp_path):
    pytest.importorskip("elftools", reason="pyelftools is missing: install kernel-farm[debug]")
    text = b"""; farm: wild(x: int64[2] inout)
define void @wild(ptr %x) !dbg !4 {
  %at = getelementptr i64, ptr %x, i64 1, !dbg !6
  %far = load ptr, ptr %at, !dbg !6
  store volatile i64 3, ptr %far, !dbg !7
  ret void, !dbg !7
}
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2, !3}
!0 = distinct !DICompileUnit(language: DW_LANG_C11, file: !1, isOptimized: true, emissionKind: LineTablesOnly)
!1 = !DIFile(filename: "wild.ll", directory: ".")
!2 = !{i32 2, !"Debug Info Version", i32 3}
!3 = !{i32 2, !"Dwarf Version", i32 4}
!4 = distinct !DISubprogram(name: "wild", file: !1, line: 1, type: !5, unit: !0, spFlags: DISPFlagDefinition)
!5 = !DISubroutineType(types: !8)
!6 = !DILocation(line: 71, scope: !4)
!7 = !DILocation(line: 72, scope: !4)
!8 = !{null}
"""
    from farm.ir.declaration import functions_of

    (function,) = functions_of("wild.ll", text)
    artifact: Artifact = assemble(LINES, [compile_function(serialise(function), "device", LINES)])
    artifact.save(tmp_path / "wild.farm")
    code = (
        "import sys, numpy, farm\n"
        "with farm.load(farm.Artifact.load(sys.argv[1])) as module:\n"
        "    module.call('wild', [numpy.array([1, 8])])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "wild.farm")],
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == -11
    assert done.stderr.endswith(b"\nfarm-crash: wild at wild.ll:72\n")
