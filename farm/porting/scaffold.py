"""A working start for a new accelerator: a package of three files that passes the checks as it stands.

Owns: those files. Does not own: installing or checking them.

Invariant: nothing that exists is overwritten.
"""

from __future__ import annotations

from pathlib import Path

from farm.core.files import write_atomic
from farm.errors import InvalidInput
from farm.target.installed import NAME, RESERVED

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "farm-@NAME@"
version = "0.1"
description = "@NAME@, an accelerator for kernel-farm"
requires-python = ">=3.11"
dependencies = ["kernel-farm"]

[project.entry-points."kernel_farm.accelerators"]
@NAME@ = "@MODULE@:ACCELERATOR"

[tool.hatch.build.targets.wheel]
only-include = ["@MODULE@.py"]
"""

CODE = '''"""@NAME@: an accelerator for kernel-farm.

This start works: it takes products of int8 matrices and runs them with numpy. Change one hook at a time, and check
after each: `farm accelerator check @NAME@`.
"""

import struct

import numpy as np

from farm.accel import Accelerator
from farm.codegen.accelerator import layer_of
from farm.errors import InvalidProgram

FIELDS = ("m", "n", "k", "transposed", "arg_x", "arg_w", "arg_out", "rows")
"""Of a program: sizes, whether w is n x k, which parameters of the function they are, rows at once."""


def supports(function, config):
    """Return why a function cannot run here, empty if it can. What is refused runs on a CPU."""
    layer = layer_of(function)
    if layer.kind != "dense" or not layer.is_plain:
        return f"it is {layer.kind}; only plain products of matrices run here"
    types = [function.params[layer.sizes[f"arg_{name}"]].buffer.dtype.value for name in ("x", "w", "out")]
    return "" if types == ["int8", "int8", "int32"] else f"its types are {types}; use int8, int8, int32"


def knobs(function, config):
    """Return what the code generator may choose; the first value of each is the default."""
    return {"rows": [16, 1, 64]}


def compile(function, config, knobs):
    """Return the program of a function: bytes that only `launch` has to understand."""
    sizes = {**layer_of(function).sizes, **knobs}
    return struct.pack("<8I", *(sizes[name] for name in FIELDS))


def launch(program, config, unit):
    """Return what runs a program once; of real hardware, this is where its driver is called."""
    it = decode(program)

    def run(arrays):
        x, w, out = (arrays[it[f"arg_{name}"]] for name in ("x", "w", "out"))
        w = (w.T if it["transposed"] else w).astype(np.int32)
        for first in range(0, it["m"], it["rows"]):
            out[first : first + it["rows"]] = x[first : first + it["rows"]].astype(np.int32) @ w
        return cycles(program, config)

    return run


def decode(program):
    """Return the fields of a program."""
    if len(program) != 4 * len(FIELDS):
        raise InvalidProgram(f"@NAME@: {len(program)} bytes are no program")
    return dict(zip(FIELDS, struct.unpack("<8I", program), strict=True))


def disassemble(program):
    """Return the text of a program."""
    return " ".join(f"{name}={value}" for name, value in decode(program).items())


def assemble(text):
    """Return the program of a text."""
    try:
        given = dict(word.split("=") for word in text.split())
        return struct.pack("<8I", *(int(given[name]) for name in FIELDS))
    except (ValueError, KeyError, struct.error) as error:
        raise InvalidProgram(f"@NAME@: no program ({error}); write m=8 n=8 ...") from error


def cycles(program, config):
    """Return how long a program takes, by your own model; leave the hook out if only a run can tell."""
    it = decode(program)
    return it["m"] * it["n"] * it["k"] // 16 + 10 * -(-it["m"] // max(1, it["rows"]))


ACCELERATOR = Accelerator(
    name="@NAME@",
    timing="simulated",  # native for real hardware
    supports=supports,
    knobs=knobs,
    compile=compile,
    launch=launch,
    assemble=assemble,
    disassemble=disassemble,
    cycles=cycles,
)
'''

TEST = '''"""The contract of @NAME@ with the farm; add layers of your own to `check_accelerator`."""

from @MODULE@ import ACCELERATOR

from farm.porting import check_accelerator


def test_accelerator_keeps_its_contract():
    report = check_accelerator(ACCELERATOR)
    assert report.passed, "\\n".join(map(str, report.failed))
'''


def write_start(name: str, folder: Path) -> tuple[Path, ...]:
    """Write the files of a new accelerator's package; return their paths.

    Raises
    ------
    InvalidInput
        The name cannot be an accelerator's, or the folder holds something.
    """
    if not NAME.fullmatch(name) or name in RESERVED:
        raise InvalidInput(
            f"accelerator {name[:80]!r}: no name for one; use lower-case letters, digits and dashes, at most 31, and "
            f"none of {', '.join(sorted(RESERVED))}"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder}: exists and is not empty; name another folder with --dir")
    module = f"farm_{name.replace('-', '_')}"
    files = {"pyproject.toml": PROJECT, f"{module}.py": CODE, f"test_{module}.py": TEST}
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        filled = text.replace("@NAME@", name).replace("@MODULE@", module)
        write_atomic(folder / file, filled.encode())
    return tuple(folder / file for file in files)
