"""The entry: an artifact and a target in, a library or program and its header out.

Owns: which sections are exported, the kinds of file, the refusals. Does not own: text (`header`), tools.

Invariant: files are written whole or not at all, the header last.
"""

from __future__ import annotations

import enum
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.artifact.abi import is_public
from farm.artifact.module import ELF_OBJECT, WASM_OBJECT, Section
from farm.core.files import write_atomic
from farm.errors import InvalidInput, NoVariant
from farm.exporting.header import header_text, program_tables
from farm.runtime.elf import check_link
from farm.runtime.toolchain import (
    cache_folder,
    link_archive,
    link_program,
    link_shared,
    link_wasm,
)
from farm.target import Target, as_target

if TYPE_CHECKING:
    from farm.artifact import Artifact
    from farm.artifact.signature import Signature

PROGRAM_ARCHITECTURES = ("aarch64", "armv7", "riscv64", "x86_64")


class Kind(enum.Enum):
    """What is made."""

    SHARED = (
        "shared"  # a shared object; needs memcpy, memmove and memset of the program that loads it
    )
    STATIC = "static"  # an archive of objects; the same
    EXECUTABLE = (
        "executable"  # a program for Linux that calls the functions on files; needs nothing
    )
    WASM = "wasm"  # a module that exports functions, memory and __heap_base, and imports nothing


_SUFFIXES = {".so": Kind.SHARED, ".a": Kind.STATIC, ".wasm": Kind.WASM}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    path: Path
    header: Path
    kind: Kind
    target: str
    symbols: tuple[str, ...]


def export(
    artifact: Artifact,
    path: Path | str,
    target: str | Target | None = None,
    *,
    kind: str | Kind | None = None,
    header: Path | str | None = None,
) -> Exported:
    """Write a target's functions as a file for other programs, and a C header for it.

    Parameters
    ----------
    path
        The file; ``.so`` makes a shared object, ``.a`` a static library, ``.wasm`` a module, any other name a program.
    target
        Whose slice; may be left out if the artifact has one for a single CPU.
    kind
        ``shared``, ``static``, ``executable`` or ``wasm``, if the name does not say it.
    header
        By default beside the file, with the suffix ``.h``.

    Raises
    ------
    NoVariant
        The artifact has nothing for the target, or for several.
    InvalidInput
        The target cannot be exported like that.
    UndefinedReference
        A function calls one that the target does not have, such as an accelerator's.
    InfrastructureError
        The tools are missing (`kernel-farm[cross]`).
    """
    path = Path(path)
    header = Path(header) if header is not None else path.with_suffix(".h")
    if header == path:
        raise InvalidInput(f"export: {path} would be its own header; name the header")
    chosen = _target(artifact, target)
    made = Kind(kind) if kind is not None else _SUFFIXES.get(path.suffix, Kind.EXECUTABLE)
    sections = [s for s in artifact.sections if s.kind == "device" and s.target == str(chosen)]
    public = {
        section.symbol: artifact.symbols[section.symbol]
        for section in sections
        if is_public(section.symbol)
    }
    data = _linked(made, chosen, sections, public, path.name)
    write_atomic(path, data)
    if made is Kind.EXECUTABLE:
        path.chmod(0o755)
    write_atomic(header, header_text(path.stem, str(chosen), public).encode())
    return Exported(path, header, made, str(chosen), tuple(public))


def _target(artifact: Artifact, target: str | Target | None) -> Target:
    """Return the one that is exported; it is a CPU of which there are functions."""
    has = sorted({s.target for s in artifact.sections if s.kind == "device"})
    cpus = [text for text in has if not Target.parse(text, foreign=True).is_accelerator]
    if target is not None:
        chosen = as_target(target)
        if chosen.is_accelerator:
            raise InvalidInput(f"export: {chosen} is an accelerator; export a CPU's functions")
        if str(chosen) not in has:
            raise NoVariant(f"export: nothing was built for ({chosen}); there is {', '.join(has)}")
        return chosen
    if len(cpus) != 1:
        what = "several CPUs" if cpus else "no CPU"
        raise NoVariant(
            f"export: the artifact is for {what} ({', '.join(has)}); name the target to export"
        )
    return Target.parse(cpus[0])


def _linked(
    kind: Kind,
    target: Target,
    sections: list[Section],
    public: dict[str, Signature],
    name: str,
) -> bytes:
    arch = (target.option("mtriple") or "").partition("-")[0]
    formats = {section.format for section in sections}
    if (kind is Kind.WASM) != (formats == {WASM_OBJECT}) and kind is not Kind.STATIC:
        raise InvalidInput(
            f"export: {kind.value} cannot be made for {target}; WebAssembly is exported as wasm or static, other "
            "targets as shared, static or executable"
        )
    if formats == {ELF_OBJECT}:
        check_link(arch, sections)
    if kind is Kind.EXECUTABLE and arch not in PROGRAM_ARCHITECTURES:
        raise InvalidInput(
            f"export: no programs for {arch}; use {', '.join(PROGRAM_ARCHITECTURES)}, or export a library"
        )
    work = Path(tempfile.mkdtemp(prefix="kernel-farm-"))
    try:
        match kind:
            case Kind.SHARED:
                return link_shared(sections, public, name, work)
            case Kind.STATIC:
                return link_archive(sections, work)
            case Kind.WASM:
                return link_wasm(sections, public, work, cache_folder())
            case Kind.EXECUTABLE:
                return link_program(arch, sections, program_tables(public), work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
