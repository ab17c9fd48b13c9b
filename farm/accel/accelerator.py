"""The one object that describes an accelerator to the farm.

Owns: which hooks there are, what each takes and gives, and the checks of the object itself.
Does not own: who calls a hook, in which process, with what protection (`farm.accel.guard`).

Invariant: an object that exists has a well-formed name, its usual configuration, and at least one way to get code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from farm.accel.intrinsic import Intrinsic
from farm.errors import InvalidInput
from farm.target.installed import NAME

if TYPE_CHECKING:
    import numpy.typing as npt

    from farm.codegen.accelerator.layer import Layer
    from farm.ir import Function

    Array = npt.NDArray[Any]

Timing = Literal["native", "emulated", "simulated"]
"""How times of its devices are to be read: of real hardware, of an emulator, or of a simulator."""

Value = int | str
Knobs = Mapping[str, Value]
"""One choice for each knob."""

Space = Mapping[str, Sequence[Value]]
"""The values of each knob; the first is the default."""

Run = Callable[[Sequence["Array"]], "int | None"]
"""Runs a loaded program once on the function's parameters, in order; returns the cycles that it took, if it counts.

Arrays of inputs are read-only; those of outputs hold anything. An exception is the device's failure.
"""

_CONFIG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TIMINGS = ("native", "emulated", "simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """A function of the accelerator's own library, called in place of generated code.

    Attributes
    ----------
    supports
        ``(layer, config)`` → why it cannot do the layer, empty if it can.
    call
        ``(sizes, config, arrays, workspace, knobs)``: do it. `sizes` are the layer's (`Layer.sizes`), `arrays` its
        parameters in the function's order, `workspace` uint8 with undefined content.
    workspace
        ``(sizes, config, knobs)`` → bytes of workspace; None: none.
    tunables
        ``(layer, config)`` → the values of each tunable, the default first; None: none.
    """

    name: str
    supports: Callable[[Layer, Any], str]
    call: Callable[[Mapping[str, int], Any, Sequence[Array], Array, Knobs], object]
    workspace: Callable[[Mapping[str, int], Any, Knobs], int] | None = None
    tunables: Callable[[Layer, Any], Space] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _CONFIG.fullmatch(self.name):
            raise InvalidInput(
                f"external {self.name!r}: malformed name; use letters, digits, dots, dashes and underscores"
            )
        for hook in ("supports", "call", "workspace", "tunables"):
            given, may_be_none = getattr(self, hook), hook in ("workspace", "tunables")
            if not (callable(given) or (given is None and may_be_none)):
                wanted = "a function" + " or None" * may_be_none
                raise InvalidInput(f"external {self.name}: {hook} is {given!r}; give {wanted}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """An accelerator, as its package gives it to the farm. Every hook is optional; give those of the ways you take.

    Hooks get the configuration's value from `configs` as `config`. They may raise `farm.errors.UnsupportedFunction`
    to refuse with a reason; any other exception is told with the accelerator's name.

    Attributes
    ----------
    name
        Kind of target, driver of its devices, and name of its entry point.
    configs
        What differs between its devices, by name. The usual one has the accelerator's name.
    version
        Of its programs: raise it whenever older devices cannot run new programs, or the other way round.
    timing
        How times of its devices are to be read.
    probe
        ``(unit, config)`` → why a device cannot be used now, empty if it can.

    supports
        Full target: ``(function, config)`` → why it cannot run a function, empty if it can. None: `compile` says so.
    compile
        Full target: ``(function, config, knobs)`` → the program.
    knobs
        Full target: ``(function, config)`` → the values of each knob, the default first. None: none.
    launch
        Full target: ``(program, config, unit)`` → what runs it; `unit` names one of several devices. None only for ways
        that need none.
    assemble, disassemble
        Full target: text → program and program → text.
    cycles
        ``(program, config)`` → cycles by its own model, where they follow from the program.

    intrinsics
        Tensorize: operations of the hardware; loops are replaced by them.
    execute
        Tensorize: ``(instructions, memory, config, unit)``: run what intrinsics emitted on a memory of bytes; may
        return the cycles that it took.
    externals
        Library: functions that do whole layers.
    backend
        BYOC: patterns, a code generator for regions of graphs and its runtime (`farm.graph`).
    """

    name: str
    configs: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    timing: Timing = "simulated"
    probe: Callable[[str, Any], str] | None = None

    supports: Callable[[Function, Any], str] | None = None
    compile: Callable[[Function, Any, Knobs], bytes] | None = None
    knobs: Callable[[Function, Any], Space] | None = None
    launch: Callable[[bytes, Any, str], Run] | None = None
    assemble: Callable[[str], bytes] | None = None
    disassemble: Callable[[bytes], str] | None = None
    cycles: Callable[[bytes, Any], int] | None = None

    intrinsics: Sequence[Intrinsic] = ()
    execute: Callable[[bytes, Array, Any, str], int | None] | None = None
    externals: Sequence[External] = ()
    backend: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise InvalidInput(
                f"accelerator {self.name!r}: malformed name; use lower-case letters, digits and dashes, at most 31"
            )
        if self.timing not in TIMINGS:
            raise self._wrong(f"timing is {self.timing!r}; use {', '.join(TIMINGS)}")
        if type(self.version) is not int or not 0 < self.version < 1 << 16:
            raise self._wrong(f"version is {self.version!r}; use 1 to 65535")
        self._check_configs()
        self._check_ways()

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways that it takes, in the order in which they are tried for a function; ``byoc`` is for graphs."""
        found = {
            "library": bool(self.externals),
            "tensorize": bool(self.intrinsics),
            "target": self.compile is not None,
            "byoc": self.backend is not None,
        }
        return tuple(name for name, is_there in found.items() if is_there)

    @property
    def program_format(self) -> str:
        """What its own programs are called in an artifact."""
        return f"{self.name}-program"

    def _check_configs(self) -> None:
        if not isinstance(self.configs, Mapping):
            raise self._wrong("configs is no mapping; give {name: value}")
        if not self.configs:
            object.__setattr__(self, "configs", {self.name: None})
        for name in self.configs:
            if not isinstance(name, str) or not _CONFIG.fullmatch(name):
                raise self._wrong(f"configuration {name!r}; use letters, digits, dots and dashes")

    def _check_ways(self) -> None:
        hooks = ("probe", "supports", "compile", "knobs", "launch", "assemble", "disassemble")
        for name in (*hooks, "cycles", "execute"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise self._wrong(f"{name} is {getattr(self, name)!r}; give a function or None")
        for name, kind in (("intrinsics", Intrinsic), ("externals", External)):
            them = getattr(self, name)
            if not isinstance(them, list | tuple) or not all(isinstance(it, kind) for it in them):
                raise self._wrong(f"{name} are {them!r:.80}; give a list of {kind.__name__}")
        if not self.ways:
            raise self._wrong("it has no way; give compile, intrinsics, externals or backend")
        if (self.compile is None) != (self.launch is None):
            raise self._wrong("compile and launch belong together; give both or none")
        if bool(self.intrinsics) != (self.execute is not None):
            raise self._wrong("intrinsics and execute belong together; give both or none")
        for what, them in (("intrinsic", self.intrinsics), ("external", self.externals)):
            names = [it.name for it in them]
            if len(set(names)) != len(names):
                raise self._wrong(f"two {what}s of one name ({', '.join(names)}); rename one")

    def _wrong(self, what: str) -> InvalidInput:
        return InvalidInput(f"accelerator {self.name}: {what}")
