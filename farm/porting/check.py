"""Contract tests for an accelerator: what its author can rely on the farm to rely on.

Owns: the order of the checks, and the checks of single functions. Does not own: intrinsics (`intrinsics`), whole builds
in other processes (`installed`), the functions (`probes`).

Invariant: no check is passed by saying no: an accelerator that takes none of the functions fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.accel import Accelerator, Loaded, guard
from farm.codegen.accelerator import with_knobs
from farm.codegen.accelerator.asking import knobs_on
from farm.codegen.accelerator.compile import compile_loaded
from farm.errors import FarmError, UnsupportedFunction
from farm.graph import Graph
from farm.ir import Function, Role, interpret
from farm.porting.encoding import check_encoding
from farm.porting.findings import Finding, Report
from farm.porting.graphs import check_backend
from farm.porting.installed import check_installed
from farm.porting.intrinsics import check_intrinsics
from farm.porting.probes import KINDS, inputs_of, probes
from farm.runtime.plugin import open_program

Array = npt.NDArray[Any]
Tell = Callable[[Finding], None]

MAX_VALUES = 6
"""Values of one knob that are tried, the first and the last among them."""
MIN_REASON = 8


def check_accelerator(
    accelerator: Accelerator,
    functions: Iterable[tuple[str, Function]] = (),
    *,
    graphs: Iterable[tuple[str, Graph]] = (),
    own_only: bool = False,
    seed: int = 0,
    tell: Tell | None = None,
) -> Report:
    """Check an accelerator against the contract of its hooks.

    Parameters
    ----------
    functions
        Layers of your own with a label each, checked besides those that the farm brings.
    graphs
        The same for the backend of graphs, if there is one.
    own_only
        Leave out those that the farm brings.
    tell
        Called with each finding as it is made.

    Notes
    -----
    Everything runs in this process, so that an author can use a debugger: a hook that never returns hangs it. ``farm
    accelerator check`` runs in a process of its own with a time limit.
    """
    findings: list[Finding] = []

    def note(finding: Finding) -> None:
        findings.append(finding)
        if tell is not None:
            tell(finding)

    loaded = Loaded(accelerator, accelerator.name)
    _check_object(accelerator, note)
    taken: list[tuple[str, Function]] = []
    labelled = [*functions, *(() if own_only else probes(seed))]
    for config in accelerator.configs:
        for finding in check_intrinsics(loaded, config, seed):
            note(finding)
        taken += _Functions(loaded, config, note, seed).check(labelled)
    if not taken and set(accelerator.ways) != {"byoc"}:
        note(
            Finding(
                "codegen", accelerator.name, "it takes none of the functions; pass one of yours"
            )
        )
    for finding in check_installed(accelerator, taken, seed):
        note(finding)
    if accelerator.backend is not None:
        for finding in check_backend(accelerator.backend, graphs, own_only=own_only, seed=seed):
            note(finding)
    return Report(accelerator.name, tuple(findings))


def _check_object(it: Accelerator, note: Tell) -> None:
    usual = (
        ""
        if it.name in it.configs
        else f"no configuration is called {it.name}: name the usual one so"
    )
    note(
        Finding(
            "object", f"configurations {', '.join(it.configs)}", "" if it.name == "ea" else usual
        )
    )
    both = (it.assemble is None) == (it.disassemble is None)
    problem = "" if both else "assemble and disassemble belong together; give both or none"
    note(Finding("object", "assembler", problem))


class _Functions:
    """The checks of functions on one configuration."""

    def __init__(self, loaded: Loaded, config: str, note: Tell, seed: int) -> None:
        self.loaded, self.config, self.note, self.seed = loaded, config, note, seed
        self.value = loaded.config(config)
        self.stage = "codegen"

    def check(self, functions: Sequence[tuple[str, Function]]) -> list[tuple[str, Function]]:
        """Check every function; return those that the accelerator takes."""
        taken = []
        for label, function in functions:
            subject = f"{label} on {self.config}"
            try:
                if self.check_one(subject, function):
                    taken.append((label, function))
            except FarmError as error:
                self.note(Finding(self.stage, subject, error.message))
        return taken

    def check_one(self, subject: str, function: Function) -> bool:
        """Check one function; tell whether the accelerator takes it."""
        self.stage = "codegen"
        says = self.says(function)
        try:
            form, program = compile_loaded(self.loaded, function, self.value)
        except UnsupportedFunction as error:
            reason = error.message if says is None else says or error.message
            self.refused(subject, says, reason)
            return False
        self.note(Finding("codegen", subject))
        again = compile_loaded(self.loaded, function, self.value)
        problem = "" if again == (form, program) else "compiled twice, it gave two programs"
        self.note(Finding("same bytes", subject, problem))
        self.stage = "results"
        self.results(subject, function, form, program)
        self.stage = "knobs"
        self.knobs(subject, function)
        self.stage = "encoding"
        if form == self.loaded.accelerator.program_format:
            for finding in check_encoding(self.loaded.accelerator, subject, program, self.seed):
                self.note(finding)
        return True

    def says(self, function: Function) -> str | None:
        """Return what the accelerator's own check says; None if it has none that speaks for all ways."""
        it, who = self.loaded.accelerator, self.loaded.who
        if it.supports is None or it.ways[0] != "target":
            return None
        try:
            said = guard.call(who, "supports", it.supports, function, self.value)
        except UnsupportedFunction as error:  # another way to say no
            return error.message
        return guard.text(who, "supports", said)

    def refused(self, subject: str, says: str | None, reason: str) -> None:
        """Note a refusal: it needs a reason, and no check may have said yes."""
        if says == "":
            self.note(
                Finding("codegen", subject, f"supports said yes, compile refused it: {reason}")
            )
        short = len(reason.strip()) < MIN_REASON
        self.note(
            Finding("reason", subject, f"refused without a reason ({reason!r})" if short else "")
        )

    def results(self, subject: str, function: Function, form: str, program: bytes) -> None:
        """Run on all kinds of inputs, each twice, and compare with the plain interpreter."""
        run = open_program(self.loaded, form, program, self.value, "")
        problem = ""
        cycles: set[object] = set()
        for kind in (*KINDS, "random"):
            inputs = inputs_of(function, kind, self.seed)
            found, took = _run(self.loaded, run, function, inputs)
            cycles.add(took)
            problem = problem or _difference(kind, _expected(function, kind, self.seed), found)
        self.note(Finding("results", subject, problem))
        hook = self.loaded.accelerator.cycles
        self.stage = "cycles"
        if hook is not None and form == self.loaded.accelerator.program_format:
            self.cycles(subject, hook, program, cycles)

    def cycles(
        self, subject: str, hook: Callable[[bytes, Any], int], program: bytes, ran: set[object]
    ) -> None:
        """Compare the model's cycles with what runs counted."""
        says: object = guard.call(self.loaded.who, "cycles", hook, program, self.value)
        problem = ""
        if not isinstance(says, int) or says < 0:
            problem = f"cycles gave {says!r}, no number from 0 on"
        elif ran not in ({None}, {says}):
            counted = ", ".join(sorted(map(str, ran)))
            problem = f"cycles says {says}, runs counted {counted}"
        self.note(Finding("cycles", subject, problem))

    def knobs(self, subject: str, function: Function) -> None:
        """Run with every value of each knob: no choice may change a result."""
        for name, values in self.space(function).items():
            problem = ""
            for value in _some(values):
                chosen = with_knobs(function, {name: value})
                form, program = compile_loaded(self.loaded, chosen, self.value)
                run = open_program(self.loaded, form, program, self.value, "")
                found, _ = _run(
                    self.loaded, run, function, inputs_of(function, "random", self.seed)
                )
                what = _difference("random", _expected(function, "random", self.seed), found)
                problem = problem or (what and f"{name}={value}: {what}")
            self.note(Finding("knobs", f"{subject}, {name}", problem))

    def space(self, function: Function) -> Mapping[str, Sequence[int | str]]:
        """Return the knobs that a function has here."""
        return knobs_on(self.loaded, function, self.config)


def _some(values: Sequence[int | str]) -> list[int | str]:
    if len(values) <= MAX_VALUES:
        return list(values)
    step = (len(values) - 1) / (MAX_VALUES - 1)
    return [values[round(number * step)] for number in range(MAX_VALUES)]


def _run(
    loaded: Loaded, run: Callable[..., object], function: Function, inputs: Sequence[Array]
) -> tuple[list[Array], object]:
    """Return the outputs of one run, whose arrays hold noise before, and the cycles that it counted."""
    given = iter(inputs)
    arrays = []
    for param in function.params:
        if param.role is Role.OUTPUT:
            array = np.full(param.buffer.shape, 0x5A, param.buffer.dtype.numpy)
        else:
            array = next(given).copy()
            array.flags.writeable = param.role is Role.INOUT
        arrays.append(array)
    cycles = guard.call(loaded.who, "the program", run, tuple(arrays))
    pairs = zip(function.params, arrays, strict=True)
    return [array for param, array in pairs if param.role is not Role.INPUT], cycles


@functools.lru_cache(maxsize=512)
def _expected(function: Function, kind: str, seed: int) -> tuple[Array, ...]:
    return interpret(function, inputs_of(function, kind, seed))


def _difference(kind: str, expected: Sequence[Array], found: Sequence[Array]) -> str:
    """Return where outputs differ, bit for bit; empty if nowhere."""
    for wanted, given in zip(expected, found, strict=True):
        if wanted.tobytes() != given.tobytes():
            at = np.argwhere(wanted != given)
            first = tuple(map(int, at[0])) if len(at) else ()
            return (
                f"wrong numbers for {kind} inputs ({len(at)} of {wanted.size}; at {first} {given[first]} instead of "
                f"{wanted[first]})"
            )
    return ""
