"""WebAssembly on this host, through wasmtime.

Owns: what the device is, and whether its tools are here. Does not own: running modules (`farm.runtime.wasm`).

Invariant: describing it loads no native library.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from farm.errors import FarmError, InvalidInput
from farm.runtime.toolchain import cache_folder, memory_object
from farm.runtime.webassembly import PROVIDES, TARGET
from farm_agents.drivers.base import GOOD, Checked, Description, TimingClass, bad
from farm_agents.drivers.cpu import ADDRESS_SPACE_BYTES, host_arch
from farm_agents.worker.loaders import LoaderSpec


class WasmDriver:
    """One WebAssembly engine; it takes no argument."""

    def __init__(self, argument: str) -> None:
        if argument:
            raise InvalidInput(f"device wasm: takes no argument ({argument!r}); use wasm")

    def describe(self) -> Description:
        """Return what the engine is."""
        return Description(
            targets=(TARGET,),
            labels=(
                ("kind", "wasm"),
                ("arch", "wasm32"),
                ("engine", "wasmtime"),
                ("host-arch", host_arch()),
            ),
            timing_class=TimingClass.NATIVE,
            provides=PROVIDES,
            address_space_bytes=ADDRESS_SPACE_BYTES,
        )

    def check(self) -> Checked:
        """Check that the engine and the linker are installed."""
        for package, extra in (("wasmtime", "wasm"), ("ziglang", "cross")):
            if importlib.util.find_spec(package) is None:
                return bad(f"{package}: not installed; install kernel-farm[{extra}]")
        try:  # compiled here, so that the first session finds it in the cache
            with tempfile.TemporaryDirectory(prefix="kernel-farm-") as work:
                memory_object(Path(work), cache_folder())
        except FarmError as error:
            return bad(error.message)
        return GOOD

    def loader(self) -> LoaderSpec:
        """Return the loader of the worker's own process."""
        return LoaderSpec("wasm", "", (TARGET,), PROVIDES)
