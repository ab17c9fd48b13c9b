"""The canonical form: what two functions share that differ only in spans and inner names.

Owns: what is renamed and dropped. Does not own: the bytes (`farm.ir.wire`).

Invariant: it means what the function meant. Parameter and function names stay, since callers see them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from farm.ir.buffer import Buffer
from farm.ir.expr import Expr, Load, Var, map_children
from farm.ir.function import Function
from farm.ir.source import Source
from farm.ir.stmt import Allocate, Block, Call, For, If, Stmt, Store


def canonicalise(function: Function) -> Function:
    """Return the function without spans, its loop variables named i0, i1, … and its inner buffers t0, t1, …."""
    renaming = _Renaming(taken={param.buffer.name for param in function.params})
    body = renaming.stmt(function.body)
    return replace(function, body=body, span=None)


@dataclass
class _Renaming:
    """New names by old ones, given out in order of appearance."""

    taken: set[str]
    vars: dict[str, Var] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)

    def fresh(self, prefix: str, count: int) -> str:
        """Return the first free name from `prefix` and a number, counting from `count`."""
        while f"{prefix}{count}" in self.taken:
            count += 1
        self.taken.add(f"{prefix}{count}")
        return f"{prefix}{count}"

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return the renamed buffer; parameters stay."""
        return self.buffers.get(buffer.name, buffer)

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement with new names."""
        match stmt:
            case For(var, _, body):
                new = self.vars[var.name] = Var(self.fresh("i", len(self.vars)))
                return replace(
                    stmt,
                    var=new,
                    body=self.stmt(body),
                    span=None,
                    annotations=tuple(sorted(stmt.annotations)),
                )
            case Store(buffer, indices, value):
                return Store(self.buffer(buffer), tuple(map(self.expr, indices)), self.expr(value))
            case If(condition, then_body, else_body):
                test, then = self.expr(condition), self.stmt(then_body)
                return If(test, then, self.stmt(else_body) if else_body is not None else None)
            case Block(stmts):
                return Block(tuple(map(self.stmt, stmts)))
            case Allocate(buffer, body):
                renamed = replace(buffer, name=self.fresh("t", len(self.buffers)))
                self.buffers[buffer.name] = renamed
                return Allocate(renamed, self.stmt(body))
            case Source(language, text, options):
                return Source(language, text, options)
            case Call(callee, buffers):
                return Call(callee, tuple(map(self.buffer, buffers)))
            case _:
                raise AssertionError(f"unknown statement {type(stmt).__name__}")

    def expr(self, expr: Expr) -> Expr:
        """Return an expression with new names."""
        match expr:
            case Var(name):
                return self.vars.get(name, expr)
            case Load(buffer, indices):
                return Load(self.buffer(buffer), tuple(map(self.expr, indices)))
            case _:
                return map_children(expr, self.expr)
