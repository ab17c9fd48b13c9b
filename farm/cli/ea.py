"""``farm ea``: for people who write programs for the emulated accelerator by hand.

Owns: those commands. Does not own: the machine (`farm.ea`, `farm.runtime.ea`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.cli.files import EXISTING_FILE
from farm.cli.output import Output, output_option, table

if TYPE_CHECKING:
    from farm.ea.program import Program
    from farm.ea.timing import Timing

NEW_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
MAX_ARG_BYTES = 1 << 30


@click.group("ea")
def command() -> None:
    """Assemble, check, run and trace programs of the emulated accelerator.

    FILE is assembly text, or an image that starts with EAPR; docs/ea-isa.md describes both.

    \b
    Example:
      farm ea asm dense.eas --out dense.ea
      farm ea disasm dense.ea
      farm ea run dense.eas --arg A=a.npy --arg C=64 --save C=c.npy
      farm ea trace dense.eas --out trace.json
    """  # noqa: D301 - click's mark


@command.command("asm")
@click.argument("file", type=EXISTING_FILE)
@click.option("--out", type=NEW_FILE, required=True, help="Where the image goes.")
@click.option(
    "--no-check", is_flag=True, help="Do not verify it: a program that is meant to fault."
)
@output_option
def assemble_file(file: Path, out: Path, *, no_check: bool, output: Output) -> None:
    """Assemble a program, verify it, and write its image.

    The verifier finds what would fault, and accesses that no token orders.

    \b
    JSON: {"out", "config", "instructions", "args", "size_bytes"}
    """  # noqa: D301 - click's mark
    from farm.core.files import write_atomic
    from farm.ea.encoding import encode_program
    from farm.ea.verify import check

    program = _read(file)
    if not no_check:
        check(program)
    image = encode_program(program)
    write_atomic(out, image)
    about: dict[str, Any] = {
        "out": str(out),
        "config": program.config.name,
        "instructions": len(program.instructions),
        "args": {arg.name: arg.min_bytes for arg in program.args},
        "size_bytes": len(image),
    }
    output.result(
        about, f"{out}: {len(program.instructions)} instructions for {program.config.name}"
    )


@command.command("disasm")
@click.argument("file", type=EXISTING_FILE)
@output_option
def disassemble_file(file: Path, output: Output) -> None:
    """Print a program as assembly text, which assembles to the same image.

    \b
    JSON: {"text"}
    """  # noqa: D301 - click's mark
    from farm.ea.disassembly import disassemble

    text = disassemble(_read(file))
    output.result({"text": text}, text.rstrip("\n"))


@command.command("run")
@click.argument("file", type=EXISTING_FILE)
@click.option(
    "--arg",
    "given",
    multiple=True,
    metavar="NAME=FILE.npy|BYTES",
    help="An argument: an array from a file, or so many zero bytes. Left out: zeros, as long as needed.",
)
@click.option(
    "--save", multiple=True, metavar="NAME=FILE.npy", help="Write an argument afterwards."
)
@click.option(
    "--chaos",
    type=click.IntRange(0),
    metavar="SEED",
    help="Run in an unusual but legal order: shows what a missing token does. Slow, and no cycles.",
)
@click.option("--no-check", is_flag=True, help="Run it unverified, to see it fault.")
@output_option
def run_file(
    file: Path,
    given: tuple[str, ...],
    save: tuple[str, ...],
    chaos: int | None,
    *,
    no_check: bool,
    output: Output,
) -> None:
    """Run a program and say what it took.

    \b
    JSON: {"instructions", "fuel", "cycles", "seconds", "bound_cycles", "bound", "busy", "stalls", "saved"};
          with --chaos no cycles
    """  # noqa: D301 - click's mark
    import numpy as np

    from farm.ea.emulator import Machine
    from farm.ea.verify import check
    from farm.runtime.ea.machine import CompiledMachine
    from farm.runtime.ea.program import LoadedProgram

    program = _read(file)
    arrays = _arrays(program, _pairs("--arg", given, program))
    targets = _pairs("--save", save, program)
    if not no_check:
        check(program, [array.nbytes for array in arrays])
    about: dict[str, Any]
    if chaos is not None:
        report = Machine(program.config).run(program, arrays, chaos_seed=chaos)
        about = {"instructions": report.instructions, "fuel": report.fuel}
        text = f"{report.instructions} instructions in an order drawn from {chaos}"
    else:
        loaded, machine = LoadedProgram.of(program), CompiledMachine(program.config)
        run = machine.run(loaded, arrays)
        timing = machine.time(loaded)
        about = {"instructions": run.instructions, "fuel": run.fuel, **_facts(timing)}
        text = f"{run.instructions} instructions\n{_timing_text(timing)}"
    names = [arg.name for arg in program.args]
    for name, path in targets.items():
        np.save(path, arrays[names.index(name)])
    about["saved"] = dict(targets)
    output.result(
        about, "\n".join([text, *(f"saved {name} to {path}" for name, path in targets.items())])
    )


@command.command("trace")
@click.argument("file", type=EXISTING_FILE)
@click.option("--out", type=NEW_FILE, required=True, help="Where the trace goes, as JSON.")
@output_option
def trace_file(file: Path, out: Path, output: Output) -> None:
    """Write when each instruction runs, for chrome://tracing or Perfetto; 1 us there is a cycle.

    \b
    JSON: {"out", "cycles", "seconds", "bound_cycles", "bound", "busy", "stalls"}
    """  # noqa: D301 - click's mark
    from farm.core.files import write_atomic
    from farm.ea.verify import check
    from farm.runtime.ea.machine import CompiledMachine
    from farm.runtime.ea.program import LoadedProgram

    program = _read(file)
    check(program)
    timing = CompiledMachine(program.config).time(LoadedProgram.of(program), spans=True)
    write_atomic(out, timing.chrome_trace(program).encode())
    output.result({"out": str(out), **_facts(timing)}, f"{_timing_text(timing)}\nwrote {out}")


def _read(file: Path) -> Program:
    """Return the program in a file of either form."""
    from farm.core.files import read_regular
    from farm.ea.assembly import MAX_SOURCE_BYTES, assemble
    from farm.ea.encoding import MAGIC, decode_program
    from farm.errors import InvalidProgram

    data = read_regular(file)
    if data.startswith(MAGIC):
        return decode_program(data)
    if len(data) > MAX_SOURCE_BYTES:
        raise InvalidProgram(f"{file}: too long ({len(data)} bytes); split it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidProgram(
            f"{file}: neither an image (EAPR) nor text ({error.reason} at byte {error.start}); "
            "pass assembly or what 'farm ea asm' wrote"
        ) from error
    return assemble(text, str(file))


def _pairs(option: str, values: tuple[str, ...], program: Program) -> dict[str, str]:
    known = [arg.name for arg in program.args]
    pairs = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals or not rest or name not in known or name in pairs:
            raise click.UsageError(
                f"{option} {value[:80]!r}: no NAME=VALUE of an argument given once; "
                f"the program has {', '.join(known) or 'no arguments'}"
            )
        pairs[name] = rest
    return pairs


def _arrays(program: Program, given: dict[str, str]) -> list[Any]:
    import numpy as np

    from farm.cli.files import read_numbers

    arrays = []
    for arg in program.args:
        value = given.get(arg.name, str(arg.min_bytes))
        if not value.isdecimal():
            arrays.append(read_numbers(Path(value), MAX_ARG_BYTES))
        elif len(value) <= len(str(MAX_ARG_BYTES)) and int(value) <= MAX_ARG_BYTES:
            arrays.append(np.zeros(int(value), np.int8))
        else:
            raise click.UsageError(
                f"--arg {arg.name}: too large ({value[:20]}); use at most {MAX_ARG_BYTES}"
            )
    return arrays


def _facts(timing: Timing) -> dict[str, Any]:
    return {
        "cycles": timing.cycles,
        "seconds": timing.seconds,
        "bound_cycles": timing.bound_cycles,
        "bound": dict(timing.bound),
        "busy": {engine.name: cycles for engine, cycles in timing.busy.items()},
        "stalls": {
            engine.name: {why.name: cycles for why, cycles in each.items()}
            for engine, each in timing.stalls.items()
        },
    }


def _timing_text(timing: Timing) -> str:
    total = max(timing.cycles, 1)
    rows = [
        (
            engine.name,
            str(timing.busy[engine]),
            f"{100 * timing.busy[engine] / total:.0f}%",
            *(str(cycles) for cycles in timing.stalls[engine].values()),
        )
        for engine in timing.busy
    ]
    share = 100 * timing.bound_cycles / total
    return "\n".join(
        [
            f"{timing.cycles} cycles, {timing.seconds * 1e6:.1f} us at {timing.clock_hz / 1e6:.0f} MHz; "
            f"the work's own bound is {timing.bound_cycles} ({share:.0f}%)",
            table(("engine", "busy", "of all", "no command", "no token", "no bus"), rows),
        ]
    )
