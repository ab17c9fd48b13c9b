"""The target machine: which targets LLVM knows, optimisation, object emission.

Owns: LLVM's initialisation, the check of triple, CPU and features, the pass pipeline.

Invariant: a target machine exists only for a target that LLVM took as written; LLVM itself would ignore an unknown
CPU or feature with a line on standard error.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import tempfile
import threading
from dataclasses import dataclass

import llvmlite
from llvmlite import binding as llvm

from farm.errors import InvalidTarget
from farm.target import Target
from farm.target.cpus import RISCV_LINUX, has_feature

# LLVM's names of the architectures whose objects have been looked at.
ARCHITECTURES = frozenset(
    {"x86-64", "aarch64", "arm", "thumb", "riscv32", "riscv64", "loongarch64", "wasm32"}
)
FORMATS = {"ELF": "elf-object", "Wasm": "wasm-object"}

_ARCHITECTURE_NAMES = {"x86-64": "x86_64", "arm": "armv7", "thumb": "armv7"}
_HALVES = {
    "aarch64": ("",),
    "x86-64": ("f16c",),
    "arm": ("fp16", "vfp4"),
    "thumb": ("fp16", "vfp4"),
    "riscv64": ("zfh", "zfhmin"),
}
"""Features that convert between float16 and float32; empty: every CPU does."""

_NO_SYSTEM = frozenset({"unknown", "none", "elf", "pc"})
_COMPLAINT = re.compile(
    r"^'([^']*)' is not a recognized (processor|feature) for this target.*$", re.M
)
_stderr_lock = threading.Lock()


@functools.cache
def initialise() -> None:
    """Prepare LLVM's code generators, once in a process."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def toolchain(target: Target) -> str:
    """Return what compiles here, down to the version of LLVM and, where C can be compiled, of its compiler."""
    del target
    version = ".".join(map(str, llvm.llvm_version_info))
    try:
        c_compiler = f", zig {importlib.metadata.version('ziglang')}"
    except importlib.metadata.PackageNotFoundError:
        c_compiler = ""
    return f"farm-llvm 5, llvmlite {llvmlite.__version__}, LLVM {version}{c_compiler}"


@dataclass(frozen=True, slots=True)
class Machine:
    """A target that LLVM knows.

    Attributes
    ----------
    triple
        In LLVM's own form, vendor included.
    format
        `BuiltModule.format` of its objects.
    lines
        Whether objects say which line their instructions come from.
    """

    triple: str
    cpu: str
    features: str
    architecture: str
    format: str
    lines: bool = False

    @property
    def is_elf(self) -> bool:
        """Whether objects are ELF."""
        return self.format == FORMATS["ELF"]

    @property
    def flushes_denormals(self) -> bool:
        """Whether vectors of float32 lose denormals, as those of 32-bit NEON do."""
        return self.architecture in ("arm", "thumb")

    @property
    def has_dotprod(self) -> bool:
        """Whether it is an Arm CPU of 64 bits that is sure to have sdot and udot."""
        return self.architecture == "aarch64" and self._has("dotprod")

    @property
    def has_halves(self) -> bool:
        """Whether it is sure to convert between float16 and float32."""
        return any(map(self._has, _HALVES.get(self.architecture, ())))

    def _has(self, feature: str) -> bool:
        arch = _ARCHITECTURE_NAMES.get(self.architecture, self.architecture)
        return not feature or has_feature(arch, self.cpu, self.features, feature)

    def create(self) -> llvm.TargetMachine:
        """Return a new LLVM target machine."""
        return llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu,
            features=self.features,
            opt=2,
            reloc="pic" if self.is_elf else "static",
            codemodel="default",
        )

    def compile(self, text: str, *, unroll: bool = True) -> bytes:
        """Optimise a module and return its object.

        Parameters
        ----------
        text
            LLVM IR that names this machine's triple and data layout.
        unroll
            Whether LLVM may repeat the bodies of loops, which costs a third of the time here.
        """
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
        return self.emit(module, unroll=unroll)

    def emit(self, module: llvm.ModuleRef, *, unroll: bool = True) -> bytes:
        """Optimise a module that was verified, and return its object."""
        tm = self.create()
        tuning = llvm.create_pipeline_tuning_options(speed_level=2)
        tuning.loop_vectorization, tuning.loop_unrolling = True, unroll
        # Vectors lose denormals there: the loop vectoriser heeds that, the other one does not
        tuning.slp_vectorization = unroll and not self.flushes_denormals
        builder = llvm.create_pass_builder(tm, tuning)
        builder.getModulePassManager().run(module, builder)
        data: bytes = tm.emit_object(module)
        return data

    def data_layout(self) -> str:
        """Return LLVM's data layout string."""
        return _data_layout(self)


@functools.cache
def _data_layout(machine: Machine) -> str:
    return str(machine.create().target_data)


@functools.cache
def machine_for(target: Target) -> Machine:
    """Return the machine of an ``llvm`` target.

    Raises
    ------
    InvalidTarget
        LLVM does not know the triple, CPU or a feature, or its objects are of no use here.
    """
    initialise()
    text = target.option("mtriple") or ""
    triple = _normalise(text)
    try:
        architecture = llvm.Target.from_triple(triple).name
    except RuntimeError:
        architecture = "unknown"
    if architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise InvalidTarget(f"target llvm: no such architecture ({text}); use one of {known}")
    object_format = llvm.get_object_format(triple)
    if object_format not in FORMATS:
        known = " or ".join(FORMATS)
        raise InvalidTarget(
            f"target llvm: {text} has {object_format} objects; use a triple with {known}"
        )
    cpu, features = target.option("mcpu") or "generic", target.option("mattr") or ""
    if architecture == "riscv64" and "linux" in triple and cpu.startswith("generic"):
        implied = ",".join(f"+{name}" for name in sorted(RISCV_LINUX))
        features = f"{implied},{features}".rstrip(",")
    lines = target.option("debug") == "lines"
    if lines and object_format != "ELF":
        raise InvalidTarget(f"target llvm: {text} has no lines; leave out -debug")
    machine = Machine(triple, cpu, features, architecture, FORMATS[object_format], lines)
    _check_known(machine)
    return machine


def _normalise(text: str) -> str:
    """Return a triple with all of arch-vendor-os-environment in place; LLVM reads them by position."""
    arch, *rest = text.split("-")
    parts = llvm.get_triple_parts(text)
    known = (parts.Vendor, parts.OS, parts.Env)
    for word in rest:
        if word not in _NO_SYSTEM and not any(n != "unknown" and word.startswith(n) for n in known):
            raise InvalidTarget(
                f"target llvm: unknown part of a triple ({word!r} in {text}); use arch-os-abi such as "
                f"aarch64-linux-gnu"
            )
    environment = "" if parts.Env == "unknown" else f"-{parts.Env}"
    return f"{arch}-{parts.Vendor}-{parts.OS}{environment}"


def _check_known(machine: Machine) -> None:
    if "help" in (machine.cpu, *re.split(r",?[+-]", machine.features)):
        raise InvalidTarget(f"target llvm: help is no CPU or feature ({machine.triple}); name one")
    for name, what in _COMPLAINT.findall(_stderr_of_creation(machine)):
        noun, option = ("CPU", "-mcpu") if what == "processor" else ("feature", "-mattr")
        raise InvalidTarget(
            f"target llvm: unknown {noun} for {machine.architecture} ({name!r}); use a {option} that "
            f"LLVM {llvm.llvm_version_info[0]} knows"
        )


def _stderr_of_creation(machine: Machine) -> str:
    """Create a target machine and return what LLVM wrote to descriptor 2 meanwhile.

    What other threads wrote in that time is passed on afterwards.
    """
    with _stderr_lock, tempfile.TemporaryFile() as capture:
        saved = os.dup(2)
        try:
            os.dup2(capture.fileno(), 2)
            machine.create()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        capture.seek(0)
        text = capture.read().decode(errors="replace")
    others = _COMPLAINT.sub("", text).strip()
    if others:
        os.write(2, others.encode() + b"\n")
    return text
