"""Index maps: where an element of one layout lies in another.

Owns: their text (``lambda i, j: (i // 16, j, i % 16)``), their check and their inverse. Does not own: what uses them.

Invariant: a map that exists sends different elements to different places, none of them negative.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from farm.errors import FarmError, ScheduleError
from farm.ir.affine import Affine, Digit, affine, constant, variable
from farm.ir.dtype import DType
from farm.ir.expr import Expr, Var, as_expr
from farm.ir.printer import print_expr
from farm.schedule.block import substitute

_OPERATORS: dict[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


@dataclass(frozen=True, slots=True)
class IndexMap:
    """``(i, j) -> (i // 16, j, i % 16)`` for an array of a shape.

    Attributes
    ----------
    inputs
        One variable for each dimension of the old layout.
    outputs
        One affine index for each dimension of the new one.
    shape
        The new shape: the smallest that holds every element.
    """

    inputs: tuple[Var, ...]
    outputs: tuple[Affine, ...]
    shape: tuple[int, ...]

    def apply(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return where an element lies in the new layout."""
        values = dict(zip(self.inputs, indices, strict=True))
        return tuple(substitute(output.expr(), values) for output in self.outputs)

    def inverse(self, variables: Sequence[Var]) -> tuple[Affine, ...] | None:
        """Return the old index of each place in the new layout, in given variables; None if it has no such form."""
        found: dict[Var, Affine] = {var: constant(0) for var in self.inputs}
        for var, extent, output in zip(variables, self.shape, self.outputs, strict=True):
            if output.constant:
                return None
            for digit, k in output.terms:
                place = variable(var, extent).divided(k)
                if place is None:
                    return None
                part = _low_part(place, digit.extent, digit is output.terms[0][0])
                if part is None:
                    return None
                found[digit.var] = found[digit.var] + part.scaled(digit.lower)
        return tuple(found[var] for var in self.inputs)


def _low_part(place: Affine, extent: int, is_top: bool) -> Affine | None:
    if is_top:
        return place
    above = place.divided(extent)
    return None if above is None else place - above.scaled(extent)


def index_map(text: str, shape: Sequence[int]) -> IndexMap:
    """Read an index map.

    Raises
    ------
    ScheduleError
        The text is no such lambda, has another number of indices than the shape, or sends two elements to one place.
    """
    names, results = _parse(text)
    if len(names) != len(shape):
        raise ScheduleError(
            f"index map {text}: takes {len(names)} indices; the buffer has {len(shape)}"
        )
    inputs = tuple(Var(f"map_{name}") for name in names)
    extents = dict(zip(inputs, shape, strict=True))
    scope = dict(zip(names, inputs, strict=True))
    outputs = []
    for result in results:
        form = affine(_expr(text, result, scope), extents)
        if form is None or form.interval().low < 0:
            raise ScheduleError(
                f"index map {text}: {ast.unparse(result)} is no sum of indices, their quotients and remainders "
                f"from 0 up; use only those"
            )
        outputs.append(form)
    made = IndexMap(inputs, tuple(outputs), tuple(f.interval().high + 1 for f in outputs))
    _check_injective(text, made, extents)
    return made


def _parse(text: str) -> tuple[list[str], list[ast.expr]]:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if not isinstance(tree, ast.Lambda) or len(text) > 1000:
        raise ScheduleError(f"index map {text[:200]!r}: no lambda; use 'lambda i, j: (j, i)'")
    plain = not (tree.args.vararg or tree.args.kwarg or tree.args.kwonlyargs or tree.args.defaults)
    names = [arg.arg for arg in (*tree.args.posonlyargs, *tree.args.args)]
    results = tree.body.elts if isinstance(tree.body, ast.Tuple) else [tree.body]
    if not plain or not names or not results or len(results) > 16:
        raise ScheduleError(f"index map {text}: use plain arguments and 1 to 16 results")
    return names, results


def _expr(text: str, node: ast.expr, scope: dict[str, Var]) -> Expr:
    match node:
        case ast.Constant(int() as value) if not isinstance(value, bool):
            return as_expr(value, DType.INT64)
        case ast.Name(name) if name in scope:
            return scope[name]
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            try:
                return _OPERATORS[type(op)](_expr(text, left, scope), _expr(text, right, scope))
            except FarmError as error:
                raise ScheduleError(f"index map {text}: {error.message}") from error
        case _:
            raise ScheduleError(
                f"index map {text}: {ast.unparse(node)[:80]} is not allowed; use indices, integers, + - * // %"
            )


def _check_injective(text: str, made: IndexMap, extents: dict[Var, int]) -> None:
    """Refuse a map unless every digit of every index can be read off its results."""
    digits: list[Digit] = []
    for output in made.outputs:
        reach = 1
        for digit, k in reversed(output.terms):
            if k < reach:
                raise ScheduleError(
                    f"index map {text}: two elements share a place; keep digits apart"
                )
            reach = k * digit.extent
            digits.append(digit)
    for var, extent in extents.items():
        own = sorted((d for d in digits if d.var == var), key=lambda d: d.lower)
        at = 1
        for digit in own:
            if digit.lower > at:
                break
            at = max(at, digit.lower * digit.extent)
        if at < extent:
            raise ScheduleError(
                f"index map {text}: two elements share a place: {var.name[4:]} // {at} does not count; "
                f"use all of each index"
            )


def map_text(given: str | Callable[..., object], rank: int) -> str:
    """Return the text of an index map that is given as text or as a function of index expressions."""
    if isinstance(given, str):
        return given
    names = list(inspect.signature(given).parameters)
    if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(given).parameters.values()):
        names = [f"i{axis}" for axis in range(rank)]
    found = given(*map(Var, names))
    results = found if isinstance(found, tuple | list) else (found,)
    parts = [print_expr(as_expr(each, DType.INT64)) for each in results]
    return f"lambda {', '.join(names)}: ({', '.join(parts)},)"
