"""Faults to plant in the start of a new accelerator: which check has to find each, what it says, and the changes."""

from __future__ import annotations

from dataclasses import dataclass

SUM = 'out[first : first + it["rows"]] = x[first : first + it["rows"]].astype(np.int32) @ w'
OPERANDS = "        x, w, out = (arrays"
RUN = "    def run(arrays):"
SIZES = "    sizes = {**layer_of(function).sizes, **knobs}"
PACK = '    return struct.pack("<8I", *(sizes[name] for name in FIELDS))'
TEXT = 'f"{name}={value}"'
TYPES = 'f"its types are {types}; use int8, int8, int32"'
NO_PROGRAM = '        raise InvalidProgram(f"NAME: no program'
FIELDS = "FIELDS = ("


@dataclass(frozen=True)
class Fault:
    """What is changed, and what has to be found."""

    check: str
    problem: str
    changes: tuple[tuple[str, str], ...]


def before(text: str, *lines: str) -> tuple[str, str]:
    """Return the change that puts lines before some text, which begins a line."""
    return text, "\n".join([*lines, text])


def fault(check: str, problem: str, *changes: tuple[str, str]) -> Fault:
    """Return a fault."""
    return Fault(check, problem, changes)


PLANTED = {
    "sums in 16 bits": fault(
        "results",
        "wrong numbers for extreme inputs",
        (SUM, SUM.replace("= x", "= (x").replace("@ w", "@ w).astype(np.int16)")),
    ),
    "ignores that w is transposed": fault(
        "results",
        "wrong numbers",
        ('(w.T if it["transposed"] else w)', 'w.reshape(it["k"], it["n"])'),
    ),
    "leaves the last rows out": fault(
        "results", "wrong numbers", ('range(0, it["m"], ', 'range(0, it["m"] - 4, ')
    ),
    "adds to what was there": fault(
        "results", "wrong numbers", (SUM, SUM.replace("] = x", "] += x"))
    ),
    "keeps state between runs": fault(
        "results",
        "wrong numbers for random inputs",
        before(RUN, "    calls = []"),
        (SUM, f"{SUM} * (len(calls) < 4)"),
        before(OPERANDS, "        calls.append(1)"),
    ),
    "writes its inputs": fault(
        "results", "read-only", before(OPERANDS, "        arrays[0][...] = 0")
    ),
    "raises in a run": fault(
        "results", "the program raised ZeroDivisionError", before(OPERANDS, "        1 / 0")
    ),
    "one value of a knob is wrong": fault(
        "knobs", "rows=64: wrong numbers", (SUM, f"{SUM} * (it['rows'] != 64)")
    ),
    "a yes that does not compile": fault(
        "codegen",
        "supports said yes, compile refused it: it is too cold",
        before(
            SIZES,
            "    from farm.errors import UnsupportedFunction",
            "    raise UnsupportedFunction('it is too cold')",
        ),
    ),
    "compile raises": fault("codegen", "compile raised KeyError", (SIZES, "    sizes = {}")),
    "compile gives no bytes": fault("codegen", "compile gave nonsense", (PACK, "    return sizes")),
    "compiles otherwise each time": fault(
        "same bytes",
        "two programs",
        before(FIELDS, "COUNT = []"),
        before(PACK, "    COUNT.append(1)", "    sizes['rows'] = 16 + len(COUNT)"),
    ),
    "cycles differ from those counted": fault(
        "cycles", "runs counted", ("        return cycles(program, config)", "        return 7")
    ),
    "cycles are no number": fault(
        "cycles",
        "no number",
        ('    return it["m"] * it["n"]', '    return "many" or it["m"] * it["n"]'),
        ("        return cycles(program, config)", "        return None"),
    ),
    "text leaves a field out": fault(
        "encoding",
        "no program",
        ("decode(program).items())", 'decode(program).items() if name != "k")'),
    ),
    "text changes a field": fault("encoding", "another program", (TEXT, 'f"{name}={value | 1}"')),
    "two codes for one program": fault(
        "encoding", "assembled again it is another program", (TEXT, 'f"{name}={value & 0xFFFF}"')
    ),
    "garbage raises what it likes": fault(
        "encoding", "raised ValueError", ("except (ValueError, KeyError,", "except (KeyError,")
    ),
    "garbage is a program": fault(
        "encoding", "taken for a program", before(NO_PROGRAM, "        return bytes(32)")
    ),
    "cut programs raise what they like": fault(
        "encoding",
        "disassemble raised error",
        ("    if len(program) != 4 * len(FIELDS):", "    if not program:"),
    ),
    "a no without a reason": fault("reason", "without a reason", (TYPES, '"no"')),
    "the usual configuration is absent": fault(
        "object",
        "no configuration is called zork",
        ('    name="NAME",', '    name="NAME",\n    configs={"big": 1},'),
    ),
    "an assembler without the way back": fault(
        "object", "belong together", ("    disassemble=disassemble,\n", "")
    ),
    "takes nothing": fault(
        "codegen",
        "takes none of the functions",
        before("    layer = layer_of(function)\n    if", "    return 'it is always too cold here'"),
    ),
    "needs what only the compiling process has": fault(
        "reload",
        "in a fresh process it failed",
        before(FIELDS, "SEEN = {}"),
        ("    it = decode(program)\n\n    def run", "    it = SEEN[program]\n\n    def run"),
        (
            PACK,
            f"{PACK.replace('return', 'program =')}\n    SEEN[program] = sizes\n    return program",
        ),
    ),
}
