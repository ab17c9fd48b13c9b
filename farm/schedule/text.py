"""Reading the Python-like text of traces.

Owns: that grammar: one call of ``sch`` a line. Does not own: the steps (`trace`), or writing the text.

Invariant: nothing is evaluated: what is no name, literal or list is refused.
"""

from __future__ import annotations

import ast

from farm.errors import ScheduleError
from farm.schedule.trace import MAX_BYTES, Argument, Ref, Step, Trace, checked


def parse_trace(text: str) -> Trace:
    """Read a trace from its text.

    Raises
    ------
    ScheduleError
        A line is no call of ``sch`` with keyword arguments; the message names it.
    """
    if len(text) > MAX_BYTES:
        raise ScheduleError(f"trace: {len(text)} letters; use at most {MAX_BYTES}")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ScheduleError(f"trace: no Python text ({error})") from None
    return Trace(checked([_step(node) for node in tree.body]))


def _step(node: ast.stmt) -> Step:
    match node:
        case ast.Assign([target], ast.Call() as call):
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            outputs = [name.id for name in names if isinstance(name, ast.Name)]
            if len(outputs) == len(names):
                return _call(call, tuple(outputs))
        case ast.Expr(ast.Call() as call):
            return _call(call, ())
    raise ScheduleError(f"trace, line {node.lineno}: {ast.unparse(node)[:80]!r} is no call of sch")


def _call(call: ast.Call, outputs: tuple[str, ...]) -> Step:
    match call.func:
        case ast.Attribute(ast.Name("sch"), primitive) if not call.args:
            arguments = [
                (keyword.arg, _argument(keyword.value)) for keyword in call.keywords if keyword.arg
            ]
            if len(arguments) == len(call.keywords):
                return Step(primitive, tuple(arguments), outputs)
    raise ScheduleError(
        f"trace, line {call.lineno}: {ast.unparse(call)[:80]!r} is no call of sch with keywords"
    )


def _argument(node: ast.expr) -> Argument:
    match node:
        case ast.Name(name):
            return Ref(name)
        case ast.List(elts) | ast.Tuple(elts):
            return tuple(map(_argument, elts))
        case ast.Constant(None | bool() | int() | str() as value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() as value)):
            return -value
        case _:
            raise ScheduleError(
                f"trace, line {node.lineno}: {ast.unparse(node)[:80]!r} is no name, literal or list"
            )
