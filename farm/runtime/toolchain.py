"""Making the executable that runs a module's objects under another instruction set.

Owns: compiling `runner.c` (once for a compiler, source and architecture; kept in a cache folder),
and linking it with objects.
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
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from farm.core.files import write_atomic
from farm.errors import ArtifactError, InfrastructureError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farm.artifact.module import Section

COMPILE_LIMIT_S = 120.0
_ZIG_ARCH = {"armv7": "arm"}  # which is ARMv7-A there
_SOURCE = Path(__file__).with_name("runner.c")
_FLAGS = (
    "-c",
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
            "qemu runtime: no C compiler for other machines (package ziglang); install "
            "kernel-farm[cross]"
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
    triple = f"{_ZIG_ARCH.get(arch, arch)}-linux-none"
    source = _SOURCE.read_bytes()
    facts = "\0".join([importlib.metadata.version("ziglang"), triple, *_FLAGS])
    key = hashlib.sha256(facts.encode() + source).hexdigest()[:32]
    cached = cache / f"runner-{triple}-{key}.o"
    if cached.is_file():
        return cached
    made = work / "runner.o"
    _run([str(zig()), "cc", f"--target={triple}", *_FLAGS, str(_SOURCE), "-o", str(made)], work)
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
    runner = runner_object(arch, work, cache)
    inputs = [runner]
    for index, section in enumerate(sections):
        path = work / f"{index}.o"
        path.write_bytes(section.data)
        inputs.append(path)
    image = work / "image"
    command = [str(zig()), "ld.lld", "-static", "-e", "__farm_start", "-z", "noexecstack"]
    result = _invoke([*command, "-o", str(image), *map(str, inputs)], work)
    if result.returncode != 0:
        raise ArtifactError(
            f"link: the objects do not fit ({_tail(result.stderr)}); build them again"
        )
    return image


def _run(command: list[str], work: Path) -> None:
    result = _invoke(command, work)
    if result.returncode != 0:
        raise InfrastructureError(
            f"qemu runtime: the compiler failed ({_tail(result.stderr)}); reinstall "
            "kernel-farm[cross]"
        )


def _invoke(command: list[str], work: Path) -> subprocess.CompletedProcess[bytes]:
    folders = {"ZIG_GLOBAL_CACHE_DIR": str(work / "zig"), "ZIG_LOCAL_CACHE_DIR": str(work / "zig")}
    try:
        return subprocess.run(
            command,
            env={**os.environ, **folders},
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMPILE_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(
            f"qemu runtime: cannot run the compiler ({error}); reinstall kernel-farm[cross]"
        ) from error


def _tail(text: bytes) -> str:
    return text.decode(errors="replace").strip()[-2000:]
