"""Constraints of a search space: expressions over parameters, checked before they are evaluated.

Owns the small language (a part of Python's expressions) and its evaluation. Does not own spaces.

Invariant: an accepted expression can do nothing but arithmetic and comparisons on its parameters.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType

from farm.errors import InvalidSpace

Value = int | float | str | bool

MAX_CHARACTERS = 10_000
_NODES = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *(ast.IfExp, ast.Name, ast.Load, ast.Constant, ast.Tuple, ast.List, ast.Call),
)
_FUNCTIONS: dict[str, Callable[..., object]] = {"min": min, "max": max, "abs": abs}
_GLOBALS: dict[str, object] = {"__builtins__": {}, **_FUNCTIONS}


@dataclass(frozen=True)
class Constraint:
    """One condition, as its author wrote it.

    Parameters
    ----------
    text
        Such as ``"tile % vector == 0"``: names of parameters, numbers, strings, ``+ - * / // %``, comparisons, ``in``,
        ``and or not``, ``a if c else b``, ``min max abs``, parentheses.

    Raises
    ------
    InvalidSpace
        It does not parse, or holds anything else; says what and where.
    """

    text: str

    def __post_init__(self) -> None:
        if len(self.text) > MAX_CHARACTERS:
            raise InvalidSpace(
                f"constraint: too long ({len(self.text)} characters); use at most {MAX_CHARACTERS}"
            )
        try:
            tree = ast.parse(self.text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InvalidSpace(f"constraint {self.text!r}: no expression ({error})") from error
        names = set()
        for node in ast.walk(tree):
            self._check(node)
            if isinstance(node, ast.Name):
                names.add(node.id)
        object.__setattr__(self, "_names", frozenset(names - _FUNCTIONS.keys()))
        object.__setattr__(self, "_code", compile(tree, "<constraint>", "eval"))

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it speaks of."""
        names: frozenset[str] = self.__dict__["_names"]
        return names

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Tell whether it holds.

        Raises
        ------
        InvalidSpace
            It cannot be evaluated for these values: a division by zero, text compared with a number.
        """
        code: CodeType = self.__dict__["_code"]
        try:
            return bool(eval(code, {"__builtins__": {}, **_FUNCTIONS}, dict(values)))
        except (ArithmeticError, TypeError, ValueError) as error:
            shown = ", ".join(f"{name}={values[name]!r}" for name in sorted(self.names))
            raise InvalidSpace(
                f"constraint {self.text!r}: cannot be evaluated for {shown} ({error}); guard it with 'and' or 'if'"
            ) from error

    def _check(self, node: ast.AST) -> None:
        allowed = isinstance(node, _NODES)
        if isinstance(node, ast.Call):
            named = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
            allowed = named and not node.keywords
        elif isinstance(node, ast.Constant):
            allowed = isinstance(node.value, int | float | str)
        if not allowed:
            place = f" at column {node.col_offset + 1}" if hasattr(node, "col_offset") else ""
            raise InvalidSpace(
                f"constraint {self.text!r}: {type(node).__name__} is not allowed{place}; use arithmetic, comparisons, "
                "and, or, not, if, in, min, max, abs"
            )
