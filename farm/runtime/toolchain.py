"""Making what runs a module's objects under another instruction set: an executable, or a WebAssembly module.

Owns: compiling `runner.c` and `memory.c` (once for a compiler, source and architecture; kept in a cache folder),
and linking them with objects.
Does not own: running the executable (`farm.runtime.qemu`).

Invariant: works without network; the cache holds whole files only, each named by everything that it
depends on; losing the cache costs only time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from farm.core.files import write_atomic
from farm.errors import (
    ArtifactError,
    DuplicateSymbol,
    InfrastructureError,
    TimeLimit,
    UndefinedReference,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from farm.artifact.module import Section

COMPILE_LIMIT_S = 120.0
_ZIG_ARCH = {"armv7": "arm"}  # which is ARMv7-A there
_FOLDER = Path(__file__).parent
_SOURCES = tuple(_FOLDER / name for name in ("runner.c", "system.c", "memory.c"))
_STACK = 1 << 16
_PROGRAM = ("-static", "-e", "__farm_start", "-z", "noexecstack")
_UNDEFINED = re.compile(r"undefined symbol: (\S+)")
_TWICE = re.compile(r"duplicate symbol: (\S+)")
_FLAGS = (
    "-c",
    "-g0",
    "-O2",
    "-std=c11",
    "-ffreestanding",
    "-fno-builtin",
    "-fno-sanitize=all",
    "-fno-stack-protector",
)


def cache_folder() -> Path:
    """Return this user's folder for things that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "kernel-farm"


def zig() -> Path:
    """Return the compiler's path; raises InfrastructureError if its package is missing."""
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        raise InfrastructureError(
            "linker: no C compiler for other machines (package ziglang); install kernel-farm[cross]"
        )
    return Path(found.origin).with_name("zig")


def runner_object(arch: str, work: Path, cache: Path) -> Path:
    """Return the compiled runner, from the cache or made now.

    Parameters
    ----------
    work
        A folder of the caller's own, for what must not be shared.
    cache
        Shared by processes of this user; may be unwritable.
    """
    return _compiled("runner", f"{_ZIG_ARCH.get(arch, arch)}-linux-none", work, cache)


def memory_object(work: Path, cache: Path) -> Path:
    """Return what WebAssembly modules are linked with, from the cache or made now; as `runner_object`."""
    return _compiled("memory", "wasm32-freestanding", work, cache)


def _compiled(name: str, triple: str, work: Path, cache: Path) -> Path:
    sources = b"".join(path.read_bytes() for path in _SOURCES)
    facts = "\0".join([importlib.metadata.version("ziglang"), triple, *_FLAGS])
    key = hashlib.sha256(facts.encode() + sources).hexdigest()[:32]
    cached = cache / f"{name}-{triple}-{key}.o"
    if cached.is_file():
        return cached
    source, made = _FOLDER / f"{name}.c", work / f"{name}.o"
    _run(["cc", f"--target={triple}", *_FLAGS, str(source), "-o", str(made)], work)
    with contextlib.suppress(OSError):  # an unwritable or full cache costs only time
        cache.mkdir(parents=True, exist_ok=True)
        write_atomic(cached, made.read_bytes())
    return made


def link_image(arch: str, sections: Sequence[Section], work: Path, cache: Path) -> Path:
    """Link objects, already checked by `check_link`, with the runner into one static executable.

    Raises
    ------
    ArtifactError
        The linker refuses an object.
    InfrastructureError
        The tools are missing or failed.
    """
    inputs = [runner_object(arch, work, cache), *_written(sections, work)]
    return _linked(_PROGRAM, inputs, work)


def link_shared(
    sections: Sequence[Section], exports: Iterable[str], name: str, work: Path
) -> bytes:
    """Link objects, already checked by `check_link`, into a shared object that exports `exports` only.

    Parameters
    ----------
    name
        What programs that are linked with it look for.
    """
    script = work / "exports"
    script.write_text(f"{{ global: {' '.join(f'{symbol};' for symbol in exports)} local: *; }};")
    options = ["-shared", "-z", "noexecstack", "-soname", name, f"--version-script={script}"]
    return _linked(options, _written(sections, work), work).read_bytes()


def link_program(arch: str, sections: Sequence[Section], tables: str, work: Path) -> bytes:
    """Link objects, already checked by `check_link`, with `program.c` and its tables into a static executable."""
    triple = f"{_ZIG_ARCH.get(arch, arch)}-linux-none"
    (work / "exported.h").write_text(tables)
    made = work / "program.o"
    source = str(_FOLDER / "program.c")
    _run(["cc", f"--target={triple}", *_FLAGS, f"-I{work}", source, "-o", str(made)], work)
    return _linked(_PROGRAM, [made, *_written(sections, work)], work).read_bytes()


def link_archive(sections: Sequence[Section], work: Path) -> bytes:
    """Return a static library of objects, one member a function."""
    members = []
    for path, section in zip(_written(sections, work), sections, strict=True):
        members.append(path.rename(work / f"{section.symbol}.o"))
    out = work / "out.a"
    done = run_zig(["ar", "rcsD", str(out), *map(str, members)], work)
    if done.returncode != 0:
        raise _does_not_fit(done.stderr)
    return out.read_bytes()


def _linked(options: Sequence[str], inputs: Iterable[Path], work: Path) -> Path:
    image = work / "image"
    done = run_zig(["ld.lld", *options, "-o", str(image), *map(str, inputs)], work)
    if done.returncode != 0:
        raise _does_not_fit(done.stderr)
    return image


def link_wasm(
    sections: Sequence[Section], exports: Iterable[str], work: Path, cache: Path
) -> bytes:
    """Link WebAssembly objects into one module that imports nothing.

    Parameters
    ----------
    exports
        Functions that callers may reach, beside ``memory`` and the global ``__heap_base``.

    Raises
    ------
    UndefinedReference, DuplicateSymbol
        A symbol is defined nowhere, or twice.
    ArtifactError
        The linker refuses an object for another reason.
    InfrastructureError
        The tools are missing or failed.
    """
    inputs = [memory_object(work, cache), *_written(sections, work)]
    image = work / "image.wasm"
    # The stack lies first, so that running over its end is a trap and not a write into data.
    command = ["wasm-ld", "--no-entry", "--stack-first", "-z", f"stack-size={_STACK}"]
    names = [f"--export={name}" for name in ("__heap_base", *exports)]
    result = run_zig([*command, *names, "-o", str(image), *map(str, inputs)], work)
    if result.returncode != 0:
        text = result.stderr.decode(errors="replace")
        if match := _UNDEFINED.search(text):
            raise UndefinedReference(
                f"link: nothing on this device defines {match[1][:80]!r}; build it for "
                f"{sections[0].target} too",
                symbol=match[1][:80],
            )
        if match := _TWICE.search(text):
            raise DuplicateSymbol(
                f"link: {match[1][:80]!r} is defined twice; rename one", symbol=match[1][:80]
            )
        raise _does_not_fit(result.stderr)
    return image.read_bytes()


def _written(sections: Sequence[Section], work: Path) -> list[Path]:
    paths = [work / f"{index}.o" for index in range(len(sections))]
    for path, section in zip(paths, sections, strict=True):
        path.write_bytes(section.data)
    return paths


def _does_not_fit(stderr: bytes) -> ArtifactError:
    return ArtifactError(f"link: the objects do not fit ({_tail(stderr)}); build them again")


def _run(command: list[str], work: Path) -> None:
    result = run_zig(command, work)
    if result.returncode != 0:
        raise InfrastructureError(
            f"linker: the compiler failed ({_tail(result.stderr)}); reinstall kernel-farm[cross]"
        )


def run_zig(arguments: Sequence[str], work: Path) -> subprocess.CompletedProcess[bytes]:
    """Run ``zig`` in a folder, which also takes its caches; what it printed is in the result.

    Raises
    ------
    TimeLimit
        It ran longer than `COMPILE_LIMIT_S`; it was killed.
    InfrastructureError
        It is not installed, or cannot be run.
    """
    folders = {"ZIG_GLOBAL_CACHE_DIR": str(work / "zig"), "ZIG_LOCAL_CACHE_DIR": str(work / "zig")}
    try:
        return subprocess.run(
            [str(zig()), *arguments],
            env={**os.environ, **folders},
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMPILE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeLimit(
            f"zig {arguments[0]}: ran longer than {COMPILE_LIMIT_S:g} s; simplify what it compiles"
        ) from error
    except OSError as error:
        raise InfrastructureError(
            f"zig {arguments[0]}: cannot be run ({error}); reinstall kernel-farm[cross]"
        ) from error


def _tail(text: bytes) -> str:
    return text.decode(errors="replace").strip()[-2000:]
