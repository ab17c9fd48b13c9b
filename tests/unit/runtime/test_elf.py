"""Reading ELF objects, and checking links before a linker sees them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farm.artifact import BuiltModule, Section, Signature, assemble
from farm.errors import ArtifactError, DuplicateSymbol, HostMismatch, UndefinedReference
from farm.runtime.elf import check_link, read_elf

IR = """
declare i32 @callee(i32)
declare extern_weak i32 @maybe(i32)
define i32 @f(i32 %x) {
  %y = call i32 @callee(i32 %x)
  %z = call i32 @maybe(i32 %y)
  %w = call i32 @own(i32 %z)
  ret i32 %w
}
define internal i32 @own(i32 %x) noinline {
  ret i32 %x
}
"""


@pytest.fixture(scope="module")
def data(emit):
    return emit(IR, "aarch64-linux-gnu")


@pytest.mark.parametrize(
    ("triple", "machine"),
    [
        ("x86_64-linux-gnu", 62),
        ("aarch64-linux-gnu", 183),
        ("riscv64-linux-gnu", 243),
        ("armv7a-linux-gnueabihf", 40),
    ],
)
def test_object_of_each_machine_tells_its_symbols(emit, triple, machine):
    elf = read_elf(emit(IR, triple))
    assert elf.machine == machine
    assert elf.defined == {"f"}
    assert elf.undefined - {"__aeabi_unwind_cpp_pr0"} == {"callee"}


def test_object_truncated_anywhere_is_an_artifact_error_or_read(data):
    for size in range(0, len(data), 7):
        with contextlib.suppress(ArtifactError):
            read_elf(data[:size])
    with pytest.raises(ArtifactError, match="outside the file"):
        read_elf(data[:-64])


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6))
@example([(47, 128)])  # the section headers beyond any file
@settings(max_examples=150)
def test_object_damaged_is_an_artifact_error_or_read(data, changes):
    damaged = bytearray(data)
    for at, value in changes:
        damaged[at % len(damaged)] = value
    with contextlib.suppress(ArtifactError):
        read_elf(bytes(damaged))


@pytest.mark.parametrize("other", [b"", b"\x7fELF", b"MZ" + bytes(100), b"\x7fELF\2\2" + bytes(99)])
def test_bytes_that_are_no_object_are_refused(other):
    with pytest.raises(ArtifactError, match="no little-endian ELF"):
        read_elf(other)


def test_executable_is_refused(data):
    with pytest.raises(ArtifactError, match=r"not relocatable \(type 2\)"):
        read_elf(data[:16] + b"\2\0" + data[18:])


@pytest.fixture(scope="module")
def section(emit):
    def make(name, ir):
        module = BuiltModule(
            kind="device",
            symbol=name,
            target="llvm -mtriple=aarch64-linux-gnu -mcpu=generic",
            format="elf-object",
            format_version=1,
            requires=("arch:aarch64",),
            toolchain="test",
            signature=Signature(()),
            data=emit(ir, "aarch64-linux-gnu"),
        )
        found: Section = assemble(module.target, [module]).sections[0]
        return found

    return make


def test_link_with_everything_defined_is_accepted(section):
    caller = section("f", "declare void @g()\ndefine void @f() {\n call void @g()\n ret void\n}")
    check_link("aarch64", [caller, section("g", "define void @g() {\n ret void\n}")])


def test_link_with_a_symbol_undefined_lists_who_refers_to_it(section):
    body = "declare void @g()\ndefine void @{0}() {{\n call void @g()\n ret void\n}}"
    objects = [section(name, body.format(name)) for name in ("f", "h")]
    with pytest.raises(UndefinedReference) as caught:
        check_link("aarch64", objects)
    assert caught.value.details == {"symbol": "g", "referrers": "f, h"}


@pytest.mark.parametrize("name", ["g", "memcpy"])
def test_link_with_a_symbol_defined_twice_is_refused(section, name):
    first = section(
        "f", f"define void @f() {{\n ret void\n}}\ndefine void @{name}() {{\n ret void\n}}"
    )
    second = section("g", "define void @g() {\n ret void\n}")
    with pytest.raises(DuplicateSymbol, match=f"both define '{name}'"):
        check_link("aarch64", [first, second])


def test_link_for_another_machine_is_refused(section):
    with pytest.raises(HostMismatch, match="its code is for"):
        check_link("x86_64", [section("f", "define void @f() {\n ret void\n}")])
