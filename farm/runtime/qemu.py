"""Running code of another instruction set under qemu-user.

Owns: the loaded module behind a child process, and starting that child again.
Does not own: the executable (`farm.runtime.toolchain`), the protocol (`farm.runtime.frames`), or
time limits: whoever calls may `close` from another thread, which ends a call that hangs.

Invariant: after `close` the child is dead and reaped and its folder is gone. A module whose child
crashed starts a new one at the next call. Times say nothing of real hardware.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.artifact.choice import Choice, choose, choose_private
from farm.errors import (
    ArtifactError,
    InfrastructureError,
    InvalidInput,
)
from farm.runtime import frames
from farm.runtime.elf import check_link
from farm.runtime.interface import (
    Array,
    CallResult,
    LoadedModule,
    check_call,
    return_error,
)
from farm.runtime.runner_process import RunnerProcess
from farm.runtime.toolchain import cache_folder, link_image
from farm.target import Target
from farm.target.cpus import CPUS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from farm.artifact.artifact import Artifact


@dataclass(frozen=True, slots=True)
class EmulatedCpu:
    """The CPU that qemu plays: its name there, and what it provides besides the architecture."""

    cpu: str
    provides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Emulated:
    """An architecture under qemu-user.

    Attributes
    ----------
    program
        The emulator; Debian's package ``qemu-user`` has it.
    triple
        Of the default target.
    cpus
        By the names that devices give them; ``""`` is the default.
    """

    program: str
    triple: str
    cpus: Mapping[str, EmulatedCpu]


_EVERYTHING = ("cpu:*", "cpu-feature:*")


def _named(arch: str, *names: str) -> dict[str, EmulatedCpu]:
    """Return CPUs that qemu and LLVM know by the same name."""
    return {
        name: EmulatedCpu(name, (*_provided(CPUS[arch][name]), f"cpu:{name}")) for name in names
    }


def _provided(features: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"cpu-feature:{name}" for name in sorted(features))


EMULATED = {
    "aarch64": Emulated(
        "qemu-aarch64",
        "aarch64-linux-gnu",
        {
            "": EmulatedCpu("max", _EVERYTHING),
            **_named("aarch64", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a76"),
            **_named("aarch64", "neoverse-n1"),
        },
    ),
    "armv7": Emulated(
        "qemu-arm",
        "armv7-linux-gnueabihf",
        {
            "": EmulatedCpu("max", _EVERYTHING),
            **_named("armv7", "cortex-a7", "cortex-a8", "cortex-a9", "cortex-a15"),
        },
    ),
    # qemu 7.2 has no "max" for riscv64; "rv64" is rv64imafdc in every release.
    "riscv64": Emulated(
        "qemu-riscv64",
        "riscv64-linux-gnu",
        {
            "": EmulatedCpu("rv64", _provided("acdfm")),
            "v": EmulatedCpu("rv64,v=true,vext_spec=v1.0,vlen=128,elen=64", _provided("acdfmv")),
        },
    ),
}


def find_emulator(arch: str) -> str | None:
    """Return the emulator's path, None if it is not installed."""
    program = EMULATED[arch].program
    return shutil.which(program) or shutil.which(f"{program}-static")


@dataclass(frozen=True, slots=True)
class QemuLoader:
    """Loads artifacts for one architecture; make one with `qemu_loader`."""

    arch: str
    cpu: EmulatedCpu
    emulator: str
    targets: tuple[str, ...]
    provides: frozenset[str]
    cache: Path

    def load(self, artifact: Artifact) -> QemuModule:
        """Link what the architecture can run of an artifact; see `Loader.load`."""
        choices = choose(artifact, self.targets, self.provides)
        helpers = choose_private(artifact, self.targets, self.provides)
        objects = [choice.linked for choice in choices.values()] + list(helpers.values())
        check_link(self.arch, objects)
        work = Path(tempfile.mkdtemp(prefix="kernel-farm-"))
        try:
            image = link_image(self.arch, objects, work, self.cache)
            return QemuModule(choices, [self.emulator, "-cpu", self.cpu.cpu, str(image)], work)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


def qemu_loader(
    machine: str = "aarch64",
    targets: Collection[str] = (),
    provides: Collection[str] = (),
    *,
    cache: Path | None = None,
) -> QemuLoader:
    """Return a loader for code of another architecture.

    Parameters
    ----------
    machine
        ``ARCH`` or ``ARCH/CPU``, such as ``riscv64`` or ``aarch64/cortex-a72``.
    targets, provides
        As in `farm.artifact.choose`; by default those of qemu's CPU.
    cache
        Folder for the compiled runner; by default one of this user's.

    Raises
    ------
    InvalidInput
        The architecture has no runner, or qemu no such CPU.
    InfrastructureError
        qemu is not installed.
    """
    arch, cpu = find_machine(machine)
    emulator = find_emulator(arch)
    if emulator is None:
        raise InfrastructureError(
            f"qemu runtime: {EMULATED[arch].program} is not installed; install the Debian package "
            "qemu-user"
        )
    default_target, default_provides = default_capabilities(machine)
    return QemuLoader(
        arch,
        cpu,
        emulator,
        tuple(targets) or (default_target,),
        frozenset(provides or default_provides),
        cache or cache_folder(),
    )


def find_machine(machine: str) -> tuple[str, EmulatedCpu]:
    """Return architecture and CPU of ``ARCH`` or ``ARCH/CPU``; InvalidInput lists what there is."""
    arch, _, name = machine.partition("/")
    emulated = EMULATED.get(arch)
    if emulated is None:
        raise InvalidInput(
            f"qemu: unknown architecture ({machine[:80]!r}); use qemu:ARCH or qemu:ARCH/CPU with one of "
            f"{', '.join(sorted(EMULATED))}"
        )
    cpu = emulated.cpus.get(name)
    if cpu is None:
        known = ", ".join(sorted(filter(None, emulated.cpus)))
        raise InvalidInput(f"qemu: unknown CPU for {arch} ({name[:80]!r}); use one of {known}")
    return arch, cpu


def default_capabilities(machine: str) -> tuple[str, frozenset[str]]:
    """Return the target of an emulated machine, and what its CPU provides."""
    arch, cpu = find_machine(machine)
    target = str(Target.parse(f"llvm -mtriple={EMULATED[arch].triple}"))
    return target, frozenset({f"arch:{arch}", *cpu.provides})


class QemuModule(LoadedModule):
    """An artifact in a child process under qemu-user."""

    def __init__(self, choices: Mapping[str, Choice], command: Sequence[str], work: Path) -> None:
        super().__init__(choices)
        self._command = list(command)
        self._work = work
        self._exchange = threading.Lock()  # held during each exchange with the child
        self._state = threading.Lock()  # guards the two below; held briefly
        self._closed = False
        self._child: RunnerProcess | None = None
        try:
            self._indices = self._table()
        except BaseException:
            self.close()
            raise

    def call(self, symbol: str, inputs: Sequence[Array], repeat: int = 0) -> CallResult:
        """Call a function; see `LoadedModule.call`. Calls of several threads take turns."""
        function = self.function(symbol)
        check_call(function, inputs, repeat)
        signature = function.signature
        if frames.request_bytes(signature) > frames.MAX_FRAME_BYTES:
            raise InvalidInput(
                f"{symbol}: its arrays are too large together; use at most "
                f"{frames.MAX_FRAME_BYTES} bytes"
            )
        with self._talking(symbol) as child:
            reply = child.exchange(self._indices[symbol], signature, inputs, repeat)
        for code in (reply.code, reply.last_code):
            error = return_error(symbol, signature, code)
            if error:
                raise error
        return CallResult(reply.outputs, reply.samples_ns)

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none."""
        with self._state:
            return self._child.pid if self._child else None

    def close(self) -> None:
        """Kill the child, reap it and remove its folder; a call that runs ends with an error."""
        with self._state:
            self._closed = True
            if self._child is not None:
                self._child.kill()
        with self._exchange:
            if self._child is not None:
                self._child.reap()
                self._child = None
            shutil.rmtree(self._work, ignore_errors=True)

    def _table(self) -> dict[str, int]:
        with self._talking("load") as child:
            names = child.table()
        missing = sorted(set(self.functions) - set(names))
        if missing:
            raise ArtifactError(
                f"{missing[0]}: its object has no entry in the table of functions; build it again"
            )
        return {name: index for index, name in enumerate(names)}

    @contextlib.contextmanager
    def _talking(self, symbol: str) -> Iterator[RunnerProcess]:
        """Give the child for one exchange; end it if the exchange does not."""
        with self._exchange:
            child = self._ready_child(symbol)
            try:
                yield child
            except (EOFError, OSError):
                error = child.death_error(symbol)
                self._forget_child()
                if self._closed:
                    raise InvalidInput(
                        f"{symbol}: its module was closed during the call; load the artifact again"
                    ) from None
                raise error from None
            except BaseException:
                child.kill()
                child.reap()
                self._forget_child()
                raise

    def _ready_child(self, symbol: str) -> RunnerProcess:
        with self._state:
            if self._closed:
                raise InvalidInput(f"{symbol}: its module was closed; load the artifact again")
            if self._child is None:
                self._child = RunnerProcess(self._command, self._work)
            return self._child

    def _forget_child(self) -> None:
        with self._state:
            self._child = None
