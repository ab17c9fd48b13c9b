"""Control groups (v1 and v2) below the agent's own, one for each confined child.

Owns: finding what this host offers, making groups with limits, killing what is in one, proving it empty, and
removing groups that a dead agent left. Does not own: putting a process in: it writes ``0`` to `Group.open_procs`.

Invariant: only groups below ``kernel-farm-PID.START`` folders of this module are ever touched; `Group.remove` succeeds
only on an empty group.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from farm_agents.sandbox.limits import Limits

CONTROLLERS = ("memory", "pids")
LIMIT_SLACK_BYTES = 1 << 20
"""How far below its limit a group may stay when what it asks for next would pass it."""
_NAME = re.compile(r"kernel-farm-(\d+)\.(\d+)")
_LEAF = "agent"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of groups: the agent's own group in it, and what it limits."""

    version: int
    base: Path
    controllers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The trees that are used; `missing` has the controllers that this host does not let the agent use."""

    trees: tuple[Hierarchy, ...]
    missing: tuple[str, ...]

    @staticmethod
    def find() -> Hierarchies:
        """Return what this process may use; prepares a delegated v2 group for having children."""
        found = [tree for tree in _usable(_mounted()) if _probe(tree)]
        has = {controller for tree in found for controller in tree.controllers}
        missing = tuple(name for name in CONTROLLERS if name not in has)
        for tree in found:
            _remove_stale(tree.base)
        return Hierarchies(tuple(found), missing)

    def make(self, name: str, limits: Limits) -> Group:
        """Make a group with these limits in every tree.

        Raises
        ------
        OSError
            The kernel refuses.
        """
        folders = tuple(tree.base / own_name() / name for tree in self.trees)
        for tree, folder in zip(self.trees, folders, strict=True):
            _make_parent(tree, folder.parent)
            folder.mkdir(exist_ok=True)
            _limit(tree, folder, limits)
        return Group(folders)

    def close(self) -> None:
        """Remove this process's folders; those that still hold a group stay."""
        for tree in self.trees:
            with contextlib.suppress(OSError):
                (tree.base / own_name()).rmdir()


@dataclass(frozen=True, slots=True)
class Group:
    """One child's group: a folder in each tree."""

    folders: tuple[Path, ...]

    def open_procs(self) -> list[int]:
        """Return a descriptor for each tree; a process that writes ``0`` to all of them is in the group."""
        return [os.open(f / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for f in self.folders]

    def pids(self) -> set[int]:
        """Return the processes in the group, as this process names them."""
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found.update(map(int, (folder / "cgroup.procs").read_text().split()))
        return found

    def kill(self) -> None:
        """Kill everything in the group; it may take a moment to be gone."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                (folder / "cgroup.kill").write_text("1")
        for pid in self.pids() - {0}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def counts_memory(self) -> bool:
        """Whether it tells what was killed in it for want of memory."""
        names = ("memory.oom_control", "memory.events")
        return any((folder / name).exists() for folder in self.folders for name in names)

    def exceeded(self) -> dict[str, str]:
        """Return the limit that the kernel enforced, if any: ``{"limit": "memory"}`` or ``"processes"``."""
        if self._memory_kills() and self._reached_memory_limit():
            return {"limit": "memory"}
        if any(count(folder / "pids.events", "max") for folder in self.folders):
            return {"limit": "processes"}
        return {}

    def host_kills(self) -> int:
        """Return how many of its processes were killed for want of memory that is not its own limit's.

        It is the host's, or that of a group above. 0 once the group has reached its own limit.
        """
        kills = self._memory_kills()
        return 0 if kills and self._reached_memory_limit() else kills

    def _memory_kills(self) -> int:
        """Return how many of its processes were killed for want of memory, whoever's it was."""
        counts = [
            count(folder / name, "oom_kill")
            for folder in self.folders
            for name in ("memory.oom_control", "memory.events")
        ]
        return max(counts, default=0)

    def _reached_memory_limit(self) -> bool:
        """Tell whether the group itself had no memory left to give.

        v2 counts how often an allocation was to fail for that. v1 tells whether the limit was met, also if giving
        caches up was enough then: there a group that ever met it is taken to have reached it. Not every kernel counts
        that for memory with swap; the most that was ever used, each tells.
        """
        return any(
            count(folder / "memory.events", "oom")
            or any(_has_met(folder, name) for name in ("memory", "memory.memsw"))
            for folder in self.folders
        )

    def remove(self) -> bool:
        """Remove the group; return whether it is gone, which proves that no process is in it."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders)


def remove_stale_groups() -> None:
    """Remove the groups that agents which are gone have left on this host."""
    for tree in _mounted():
        _remove_stale(tree.base)


def own_name() -> str:
    """Return the name of this process's folder: its id, and its start time, since ids come back."""
    return _name_of(os.getpid())


@functools.cache
def _name_of(pid: int) -> str:
    return f"kernel-farm-{pid}.{_start_time(pid)}"


def _mounted() -> Iterator[Hierarchy]:
    """Yield this process's own group in each mounted tree that has one of `CONTROLLERS`, or is of v2."""
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        paths |= dict.fromkeys(names.split(","), path)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup":
            has = [name for name in CONTROLLERS if name in options.split(",")]
            if has:
                yield Hierarchy(1, _inside(point, root, paths.get(has[0], "/")), tuple(has))
        elif kind == "cgroup2":
            yield Hierarchy(2, _inside(point, root, paths.get("", "/")), ())


def _inside(point: str, root: str, path: str) -> Path:
    """Return where the group `path` stands below a mount of the group `root` at `point`."""
    below = path.removeprefix(root) if root != "/" else path
    return Path(point) / below.strip("/")


def _usable(trees: Iterator[Hierarchy]) -> Iterator[Hierarchy]:
    seen: set[str] = set()
    for tree in trees:
        if not os.access(tree.base, os.W_OK):
            continue
        named = tree if tree.version == 1 else _with_controllers(tree)
        fresh = tuple(name for name in named.controllers if name not in seen)
        # A v2 tree without controllers still kills and proves; one tree of that kind is enough.
        key = fresh or (("v2",) if tree.version == 2 and "v2" not in seen else ())
        if key:
            seen.update(key)
            yield Hierarchy(tree.version, tree.base, fresh)


def _with_controllers(tree: Hierarchy) -> Hierarchy:
    """Let a v2 group limit its children, which needs that its own processes move to a leaf first."""
    offered = _words(tree.base / "cgroup.controllers")
    wanted = [name for name in CONTROLLERS if name in offered]
    if wanted and not set(wanted) <= set(_words(tree.base / "cgroup.subtree_control")):
        try:
            if (tree.base / "cgroup.type").exists():  # the root needs no leaf
                _move_to_leaf(tree.base)
            (tree.base / "cgroup.subtree_control").write_text(" ".join(f"+{n}" for n in wanted))
        except OSError:
            return tree
    return Hierarchy(2, tree.base, tuple(wanted))


def _move_to_leaf(base: Path) -> None:
    if _words(base / "cgroup.procs") != [str(os.getpid())]:
        raise PermissionError("the group is not this process's alone")
    (base / _LEAF).mkdir(exist_ok=True)
    (base / _LEAF / "cgroup.procs").write_text("0")


def _probe(tree: Hierarchy) -> bool:
    """Return whether groups with limits can be made in a tree."""
    folder = tree.base / own_name()
    try:
        _make_parent(tree, folder)
        (folder / "probe").mkdir(exist_ok=True)
        _limit(tree, folder / "probe", Limits.default())
        (folder / "probe").rmdir()
    except OSError:
        return False
    return True


def _make_parent(tree: Hierarchy, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if tree.version == 2 and tree.controllers:
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{n}" for n in tree.controllers))


def _limit(tree: Hierarchy, folder: Path, limits: Limits) -> None:
    if "pids" in tree.controllers:
        (folder / "pids.max").write_text(str(limits.processes))
    if "memory" not in tree.controllers:
        return
    names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    if tree.version == 2:
        names = ("memory.max", "memory.swap.max")
    (folder / names[0]).write_text(str(limits.memory_bytes))
    swap = 0 if tree.version == 2 else limits.memory_bytes
    with contextlib.suppress(OSError):  # a kernel may not count swap
        (folder / names[1]).write_text(str(swap))


def _remove_stale(base: Path) -> None:
    """Remove the folders of agents that are gone; the kernel keeps those that hold a process."""
    for folder in base.glob("kernel-farm-*"):
        match = _NAME.fullmatch(folder.name)
        if match and _start_time(int(match[1])) != match[2]:
            for group in (*folder.glob("*/"), folder):
                with contextlib.suppress(OSError):
                    group.rmdir()


def _start_time(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _has_met(folder: Path, name: str) -> bool:
    """Tell whether a group of v1 ever had all that a limit of its allows."""
    failed, limit, most = (
        _number(folder / f"{name}.{file}")
        for file in ("failcnt", "limit_in_bytes", "max_usage_in_bytes")
    )
    return failed > 0 or 0 < limit - LIMIT_SLACK_BYTES <= most


def _number(path: Path) -> int:
    words = _words(path)
    return int(words[0]) if words else 0


def has_count(path: Path, name: str) -> bool:
    """Tell whether a file of names and numbers has this name."""
    return name in _words(path)


def count(path: Path, name: str) -> int:
    """Return the number after a name in a file of names and numbers; 0 if there is none."""
    words = _words(path)
    return int(words[words.index(name) + 1]) if name in words else 0
