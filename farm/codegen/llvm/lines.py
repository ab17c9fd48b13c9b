"""Which line of a printed function each instruction comes from, in LLVM's debug metadata.

Owns: that metadata. Does not own: lines of C (clang's), or reading them back (`farm.runtime.lines`).

Invariant: it changes no instruction.
"""

from __future__ import annotations

from llvmlite import ir

from farm.ir import Function
from farm.ir.printer import line_numbers
from farm.ir.stmt import Stmt

DWARF_VERSION = 4


class Lines:
    """Gives what a builder emits the line of a statement; the file is called after the function, ``NAME.func``."""

    def __init__(self, module: ir.Module, function: Function) -> None:
        self.module = module
        self.numbers = line_numbers(function)
        self.file = module.add_debug_info(
            "DIFile", {"filename": f"{function.name}.func", "directory": "."}
        )
        self.unit = module.add_debug_info(
            "DICompileUnit",
            {
                "language": ir.DIToken("DW_LANG_C99"),
                "file": self.file,
                "producer": "kernel-farm",
                "isOptimized": True,
                "runtimeVersion": 0,
                "emissionKind": ir.DIToken("LineTablesOnly"),
            },
            is_distinct=True,
        )
        self.type = module.add_debug_info(
            "DISubroutineType", {"types": module.add_metadata([None])}
        )
        self.scopes: dict[str, ir.DIValue] = {}
        module.add_named_metadata("llvm.dbg.cu", self.unit)
        number = ir.IntType(32)
        for flag, value in (("Debug Info Version", 3), ("Dwarf Version", DWARF_VERSION)):
            parts = [ir.Constant(number, 2), ir.MetaDataString(module, flag)]
            module.add_named_metadata("llvm.module.flags", [*parts, ir.Constant(number, value)])

    def at(self, builder: ir.IRBuilder, stmt: Stmt) -> None:
        """Let what is emitted from here on come from a statement."""
        line = self.numbers.get(id(stmt))
        if line is not None:
            place = {"line": line, "column": 1, "scope": self._scope(builder.function)}
            builder.debug_metadata = self.module.add_debug_info("DILocation", place)

    def _scope(self, function: ir.Function) -> ir.DIValue:
        if function.name not in self.scopes:
            scope = self.module.add_debug_info(
                "DISubprogram",
                {
                    "name": function.name,
                    "scope": self.file,
                    "file": self.file,
                    "line": 1,
                    "type": self.type,
                    "isLocal": True,
                    "isDefinition": True,
                    "isOptimized": True,
                    "unit": self.unit,
                },
                is_distinct=True,
            )
            function.set_metadata("dbg", scope)
            self.scopes[function.name] = scope
        return self.scopes[function.name]
