"""Checks that need other processes: an artifact is built, loaded in a fresh process, and falls back to the CPU.

Owns: those checks, and the process (``python -m farm.porting.installed ARTIFACT OUT``). Does not own: building.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farm.accel import Accelerator
from farm.accel.discovery import names
from farm.artifact import Artifact
from farm.building import build
from farm.core.apart import answers, run_apart
from farm.core.elements import numpy_dtype
from farm.core.files import write_atomic
from farm.errors import FarmError
from farm.ir import Function, interpret
from farm.porting.findings import Finding
from farm.porting.probes import inputs_of
from farm.runtime.local import load_local

LIMIT_S = 120.0


def check_installed(
    it: Accelerator, taken: Sequence[tuple[str, Function]], seed: int
) -> Iterator[Finding]:
    """Yield whether a layer that the accelerator takes runs in a fresh process, and on the CPU with the same result."""
    checks = ("reload", "fallback")
    if it.name not in names() or not taken:
        why = "it takes no function" if it.name in names() else "it is not installed"
        yield from (Finding(check, it.name, skipped=why) for check in checks)
        return
    label, function = taken[0]
    expected = interpret(function, inputs_of(function, "random", seed))
    try:
        artifact = build({it.name: [function], "llvm": [function]}, variants=True)
        cpu = artifact.thin([text for text in _targets(artifact) if text.split()[0] != it.name])
    except FarmError as error:
        yield from (
            Finding(check, label, f"it does not build: {error.message}") for check in checks
        )
        return
    for check, made, wanted in (("reload", artifact, it.name), ("fallback", cpu, "llvm")):
        yield Finding(check, label, _fresh(made, function, seed, wanted, expected))


def _targets(artifact: Artifact) -> list[str]:
    return sorted({section.target for section in artifact.sections if section.kind == "device"})


def _fresh(
    artifact: Artifact, function: Function, seed: int, wanted: str, expected: Sequence[Any]
) -> str:
    """Return what is wrong with an artifact's function, called in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="kernel-farm-") as folder:
        path, arrays = Path(folder) / "layer.farm", Path(folder) / "inputs.npz"
        write_atomic(path, artifact.to_bytes())
        np.savez(arrays, *map(_bytes, inputs_of(function, "random", seed)))
        words = [str(path), str(arrays), function.name]
        ended = run_apart("farm.porting.installed", words, limit_s=LIMIT_S)
        if ended.status is None:
            return f"in a fresh process it ran longer than {LIMIT_S:g} s"
        match ended.answer:
            case {"error": str(problem)}:
                return f"in a fresh process it failed: {problem}"
            case {"target": str(target)}:
                pass
            case _:
                return (
                    f"in a fresh process it failed: {ended.how}; {ended.said[-400:] or 'no output'}"
                )
        with np.load(Path(folder) / "outputs.npz") as outputs:
            found = [outputs[name] for name in outputs.files]
    if target.split()[0] != wanted:
        return f"it ran on {target}, not on {wanted}"
    pairs = zip(expected, found, strict=True)
    same = all(np.array_equal(a, b.view(a.dtype).reshape(a.shape)) for a, b in pairs)
    return "" if same else f"in a fresh process, on {target}, it gave other numbers"


def _bytes(array: Any) -> Any:  # noqa: ANN401 - numpy's arrays
    """Return an array's bytes: files of numpy do not know every element type."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def main(artifact: str, inputs: str, symbol: str) -> dict[str, Any]:
    """Load an artifact, call a function, and keep its outputs beside the inputs; return what is to be told."""
    with np.load(inputs) as arrays:
        given = [arrays[name] for name in arrays.files]
    try:
        loaded = Artifact.load(artifact)
        specs = [spec for spec in loaded.symbols[symbol].params if spec.role != "output"]
        pairs = zip(given, specs, strict=True)
        values = [array.view(numpy_dtype(spec.dtype)).reshape(spec.shape) for array, spec in pairs]
        with load_local(loaded) as module:
            result = module.call(symbol, values)
            target = module.function(symbol).target
    except FarmError as error:
        return {"error": error.message}
    np.savez(Path(inputs).with_name("outputs.npz"), *map(_bytes, result.outputs))
    return {"target": target}


if __name__ == "__main__":
    tell = answers()
    tell(main(*sys.argv[1:4]))
    os._exit(0)  # whatever threads the plug-in left
