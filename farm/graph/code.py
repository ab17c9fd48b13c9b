"""Checking what a backend's code generator returned, and making functions of it.

Owns: the checks, and the function that a JSON document and its runtime become. Does not own: building.

Invariant: code that passed has the region's own interface, so that the region can be called like any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.core.digest import canonical_json
from farm.errors import FarmError, InvalidGraph
from farm.graph.backend import FunctionCode, JsonCode, Region
from farm.graph.types import Array, ValueType, type_of_array
from farm.ir import Buffer, Function, Param, Role, verify
from farm.ir.source import Language, Source
from farm.ir.stmt import Call, walk
from farm.target import Target

MAX_DOCUMENT_BYTES = 1 << 20
CPU = "llvm"


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """Checked code of a region.

    Attributes
    ----------
    target
        What `function` is for; None: whatever CPU the device has.
    fallback
        The same for CPUs; None: the region runs on its target only.
    constants
        Passed after the region's inputs.
    document
        Of a `JsonCode`, else None.
    """

    function: Function
    target: str | None
    fallback: Function | None
    constants: tuple[Array, ...]
    document: dict[str, Any] | None = None


def checked(region: Region, returned: object) -> Code:
    """Return the code that a backend made for a region.

    Raises
    ------
    InvalidGraph
        It is nonsense; the message says what is wrong.
    """
    if isinstance(returned, FunctionCode):
        return _function(region, returned)
    if isinstance(returned, JsonCode):
        return _document(region, returned)
    raise InvalidGraph(
        f"it returned {type(returned).__name__}; it has to return FunctionCode or JsonCode"
    )


def _function(region: Region, code: FunctionCode) -> Code:
    constants = _constants(region, code.constants)
    try:
        target = Target.parse(code.target) if isinstance(code.target, str) else None
    except FarmError as error:
        raise InvalidGraph(f"its target is unknown: {error.message}") from error
    if target is None:
        raise InvalidGraph(f"its target is no text ({code.target!r:.80})")
    _check_function(region, code.function, constants)
    fallback = code.fallback
    if fallback is not None:
        _check_function(region, fallback, constants)
    elif not isinstance(code.function.body, Source) and target.is_accelerator:
        fallback = code.function
    elif target.is_accelerator and code.constants is not None:
        raise InvalidGraph(
            "its function is in another language and packs constants; give a fallback"
        )
    if not target.is_accelerator:
        return Code(code.function, None, None, constants)
    return Code(code.function, str(target), fallback, constants)


def _document(region: Region, code: JsonCode) -> Code:
    constants = _constants(region, code.constants)
    try:
        text = canonical_json(dict(code.document))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGraph(f"its document is no plain JSON ({error})") from error
    if len(text) > MAX_DOCUMENT_BYTES:
        raise InvalidGraph(
            f"its document has {len(text)} bytes; use at most {MAX_DOCUMENT_BYTES}, and constants for arrays"
        )
    if not isinstance(code.runtime, str) or not all(isinstance(o, str) for o in code.options):
        raise InvalidGraph("its runtime or options are no text")
    try:
        function = json_function(region, text, code.runtime, constants, code.options)
        verify(function)
    except FarmError as error:
        raise InvalidGraph(f"its runtime cannot be used: {error.message}") from error
    return Code(function, None, None, constants, json.loads(text))


def _constants(region: Region, given: object) -> tuple[Array, ...]:
    if given is None:
        return tuple(region.graph.constants.values())
    if not isinstance(given, tuple | list):
        raise InvalidGraph(f"its constants are no tuple ({type(given).__name__})")
    for array in given:
        type_of_array(array)
    return tuple(np.ascontiguousarray(array).reshape(array.shape) for array in given)


def interface(region: Region, constants: Sequence[Array]) -> list[tuple[Role, ValueType]]:
    """Return what a region's function takes, in order."""
    types = region.graph.types
    return [
        *((Role.INPUT, types[name].plain) for name in region.graph.inputs),
        *((Role.INPUT, type_of_array(array)) for array in constants),
        *((Role.OUTPUT, types[name].plain) for name in region.graph.outputs),
    ]


def _check_function(region: Region, function: object, constants: Sequence[Array]) -> None:
    if not isinstance(function, Function):
        raise InvalidGraph(f"its function is none ({type(function).__name__})")
    try:
        verify(function)
    except FarmError as error:
        raise InvalidGraph(f"its function breaks a rule: {error.message}") from error
    if function.name != region.name or function.private:
        raise InvalidGraph(
            f"its function is {function.name}; it has to be public, named {region.name}"
        )
    if any(isinstance(stmt, Call) for stmt in walk(function.body)):
        raise InvalidGraph("its function calls others; it has to be whole")
    wanted = interface(region, constants)
    found = [
        (param.role, ValueType(param.buffer.shape, param.buffer.dtype)) for param in function.params
    ]
    if found != wanted:
        has, needs = (
            ", ".join(f"{role.value} {kind}" for role, kind in each) for each in (found, wanted)
        )
        raise InvalidGraph(f"its function takes ({has[:1000]}); the region needs ({needs[:1000]})")


def json_function(
    region: Region,
    document: bytes,
    runtime: str,
    constants: Sequence[Array],
    options: Sequence[str],
) -> Function:
    """Return a function in C that runs a document: the runtime, the document as text, and the entry."""
    from farm.codegen.llvm.clang import prototype  # loads a compiler

    params: list[Param] = []
    for place, (role, kind) in enumerate(interface(region, constants)):
        buffer = Buffer(f"{role.value}{place}", kind.dtype, kind.shape, kind.dtype.size_bytes)
        params.append(Param(buffer, role))
    inputs = [p.buffer for p in params if p.role is Role.INPUT]
    outputs = [p.buffer.name for p in params if p.role is not Role.INPUT]
    pointers = [b.name if b.shape else f"&{b.name}" for b in inputs]
    text = "\n".join(
        [
            runtime,
            f"static const char farm_document[] = {_c_text(document)};",
            f"{prototype(region.name, params, named=True)} {{",
            f"  const void *farm_inputs[] = {{{', '.join(pointers) or '0'}}};",
            f"  void *farm_outputs[] = {{{', '.join(outputs)}}};",
            "  run(farm_document, farm_inputs, farm_outputs);",
            "}",
        ]
    )
    body = Source(Language.C, text.encode(), tuple(options))
    return Function(region.name, tuple(params), body)


def _c_text(data: bytes) -> str:
    """Return bytes as C string literals, one for each 1,000 bytes."""
    parts = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    return "\n".join(f'"{"".join(map(_c_letter, part))}"' for part in parts)


def _c_letter(byte: int) -> str:
    letter = chr(byte)
    return letter if 32 <= byte < 127 and letter not in '"\\?' else f"\\{byte:03o}"
