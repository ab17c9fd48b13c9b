"""C to LLVM bitcode, through ``zig cc``.

Owns: the command, the checks before it runs, and what its errors become. Does not own: what is done with the bitcode
(`foreign`).

Invariant: of this host's files the compiler reads the given text and its own headers only; nothing of the result
depends on where it was compiled.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from farm.codegen.llvm.machine import Machine
from farm.errors import InvalidFunction, InvalidTarget
from farm.ir import DType, Function, Role
from farm.ir.function import Param
from farm.ir.source import Source
from farm.runtime.toolchain import run_zig, zig

C_TYPES = {
    DType.BOOL: "bool",
    **{dtype: f"{dtype}_t" for dtype in DType if dtype.is_integer},
    DType.FLOAT16: "uint16_t",
    DType.BFLOAT16: "uint16_t",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
}

_FILE = "source.c"
_FLAGS = (
    *("-O2", "-Xclang", "-disable-llvm-passes", "-std=gnu17"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-sanitize=all", "-fno-stack-protector"),
    *("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions"),
)
_LINES = ("-gline-tables-only", "-gdwarf-4", "-ffile-compilation-dir=.")
_MAX_ERRORS = 4000
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t]*\n")
_DIRECTIVE = re.compile(
    r"^\s*(?:\#|%:|\?\?=)\s*(include|include_next|import|embed)\b(?P<rest>[^\n]*)", re.M
)
_HEADER = re.compile(r"\s*<(?!/)(?!.*\.\.)[A-Za-z0-9_./]+>\s*")
_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)


def compile_c(function: Function, source: Source, machine: Machine) -> bytes:
    """Return the bitcode of a function's C source for a machine.

    Raises
    ------
    InvalidFunction
        The compiler refuses it, or it would read files; the message has the compiler's own lines.
    InvalidTarget
        The compiler does not know the CPU or a feature.
    InfrastructureError
        The compiler is not installed.
    """
    try:
        text = source.text.decode()
    except UnicodeDecodeError as error:
        raise InvalidFunction(f"function {function.name}: C is not UTF-8 ({error})") from error
    _refuse_files(function.name, text)
    work = Path(tempfile.mkdtemp(prefix="kernel-farm-"))
    try:
        (work / _FILE).write_text(f'{_prelude(function)}\n#line 1 "{_FILE}"\n{text}\n')
        where = ["cc", f"--target={_triple(machine)}", f"-mcpu={_cpu(machine)}", *_FLAGS]
        where += _LINES if machine.lines else ("-g0",)
        said = [*where, *source.options]
        for step in (
            [*said, "-E", "-MD", "-MF", "read", "-o", "whole.c", _FILE],
            [*said, "-c", "-emit-llvm", "-nostdinc", "-o", "out.bc", "whole.c"],
        ):
            done = run_zig(step, work)
            if done.returncode != 0:
                raise _refusal(function.name, machine, done.stderr.decode(errors="replace"), work)
            _check_read(function.name, work)
        return (work / "out.bc").read_bytes()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def prototype(name: str, params: Sequence[Param], *, named: bool = False) -> str:
    """Return the C declaration of a source's function, without a semicolon.

    Parameters
    ----------
    named
        Whether parameters have their buffers' names, which may be words of C.
    """
    texts = (f"{_c_param(it)}{it.buffer.name * named}" for it in params)
    return f"void {name}({', '.join(texts)})"


def is_by_value(param: Param) -> bool:
    """Tell whether a source's function takes a parameter by its value: inputs without extents."""
    return param.role is Role.INPUT and not param.buffer.shape


def _c_param(param: Param) -> str:
    kind = C_TYPES[param.buffer.dtype]
    if is_by_value(param):
        return f"{kind} "
    const = "const " if param.role is Role.INPUT else ""
    return f"{const}{kind} *"


def _prelude(function: Function) -> str:
    """Return what comes before the source: its prototype, so that another signature is an error with a line."""
    missing = [str(p.buffer.dtype) for p in function.params if p.buffer.dtype not in C_TYPES]
    if missing:
        raise InvalidFunction(
            f"function {function.name}: no C type for {missing[0]}; use another element type"
        )
    headers = "#include <stdbool.h>\n#include <stdint.h>\n"
    return f"{headers}{prototype(function.name, function.params)};"


def _refuse_files(name: str, text: str) -> None:
    spliced = _SPLICE.sub("", text)
    plain = _COMMENT.sub(lambda match: match[0] if match[0][0] in "\"'" else " ", spliced)
    for match in _DIRECTIVE.finditer(plain):
        if match[1] != "include" or not _HEADER.fullmatch(match["rest"]):
            raise InvalidFunction(
                f"function {name}: C source reads a file ({match[0].strip()[:80]!r}); use only the compiler's own "
                "headers, as #include <stdint.h>, and paste the rest"
            )


def _check_read(name: str, work: Path) -> None:
    """Refuse what was made of other files after all."""
    own = zig().parent.resolve()
    read = (
        (work / "read").read_text(errors="replace").partition(":")[2].replace("\\\n", " ").split()
    )
    for path in (Path(part) for part in read if part != _FILE):
        if own not in (work / path).resolve().parents:
            raise InvalidFunction(
                f"function {name}: C source reads a file that is not the compiler's; paste what it needs"
            )


def _refusal(
    name: str, machine: Machine, errors: str, work: Path
) -> InvalidFunction | InvalidTarget:
    said = errors.replace(f"{work}/", "").strip()[:_MAX_ERRORS]
    if re.search(r"unknown (CPU|target CPU|CPU feature|architecture)|unknown CPU", said):
        return InvalidTarget(
            f"target llvm: the C compiler does not know {machine.triple} with CPU {machine.cpu} "
            f"{machine.features} ({said[:300]}); use another -mcpu or -mattr"
        )
    return InvalidFunction(f"function {name}: the C compiler refuses its source:\n{said}")


def _triple(machine: Machine) -> str:
    arch, _, rest = machine.triple.partition("-")
    if arch.startswith("wasm"):
        return f"{arch}-wasi"
    arch = {"armv7": "arm", "armv7a": "arm"}.get(arch, arch)
    if "linux" not in rest:
        return f"{arch}-freestanding-none"
    environment = rest.rpartition("-")[2]
    known = ("gnu", "gnueabi", "gnueabihf", "musl", "musleabi", "musleabihf")
    return f"{arch}-linux-{environment if environment in known else 'gnu'}"


def _cpu(machine: Machine) -> str:
    """Return CPU and features as zig writes them."""
    names = re.sub(r"[-.]", "_", machine.cpu)
    names = "baseline" if names.startswith("generic") else names
    for feature in filter(None, machine.features.split(",")):
        names += feature[0] + re.sub(r"[-.]", "_", feature[1:])
    return names
