"""Which loader of `farm.runtime` a worker opens for a device.

Owns: `LoaderSpec`, its form in a worker's configuration, and opening it.
Does not own: loading and calling (`farm.runtime`), or what devices there are (`farm_agents.drivers`).

Invariant: a specification from outside is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.errors import InfrastructureError

if TYPE_CHECKING:
    from farm.runtime import Loader


KINDS = ("native", "opencl", "qemu", "wasm")


@dataclass(frozen=True, slots=True)
class LoaderSpec:
    """How a device's modules are loaded.

    Attributes
    ----------
    kind
        ``native`` (in the worker's process, the accelerator's emulator included), ``opencl`` (the same with a device
        of OpenCL), ``qemu`` or ``wasm``.
    arch
        For ``qemu`` the machine, ``ARCH`` or ``ARCH/CPU``; for ``opencl`` the device, ``PLATFORM.DEVICE``; else empty.
    targets, provides
        As in the device's description.
    threads
        How many threads a parallel loop may use; emulated machines run it on one.
    """

    kind: str
    arch: str
    targets: tuple[str, ...]
    provides: tuple[str, ...]
    threads: int = 1

    def to_config(self) -> dict[str, object]:
        """Return the form that crosses to the worker."""
        return {
            "kind": self.kind,
            "arch": self.arch,
            "targets": list(self.targets),
            "provides": list(self.provides),
            "threads": self.threads,
        }

    @staticmethod
    def from_config(config: object) -> LoaderSpec:
        """Return the specification of a configuration; InfrastructureError if it is malformed."""
        if not isinstance(config, Mapping):
            raise _malformed(config)
        kind, arch = config.get("kind"), config.get("arch")
        targets, provides = config.get("targets"), config.get("provides")
        threads = config.get("threads", 1)
        if kind not in KINDS or not isinstance(arch, str):
            raise _malformed(config)
        if not _is_texts(targets) or not _is_texts(provides) or not isinstance(threads, int):
            raise _malformed(config)
        return LoaderSpec(str(kind), arch, tuple(targets), tuple(provides), threads)  # type: ignore[arg-type]

    def open(self) -> Loader:
        """Open the loader in this process."""
        if self.kind == "qemu":
            from farm.runtime.qemu import qemu_loader

            return qemu_loader(self.arch, self.targets, self.provides)
        if self.kind == "wasm":
            from farm.runtime.wasm import wasm_loader

            return wasm_loader(self.targets, self.provides)
        from farm.runtime.native import native_loader

        return native_loader(self.targets, self.provides, self.arch, threads=self.threads)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _malformed(config: object) -> InfrastructureError:
    return InfrastructureError(
        f"worker: malformed loader configuration ({str(config)[:200]}); start the agent again"
    )
