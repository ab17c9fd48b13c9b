"""What an accelerator's author writes to take part of a graph.

Owns: the protocol, regions, and the two forms of code that a region becomes. Does not own: which nodes make a region
(`farm.graph.partition`), or building (`farm.graph.build`).

Invariant: whatever a backend does, it is called through `farm.graph.guard`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from farm.errors import InvalidInput
from farm.graph.graph import Graph, Node
from farm.graph.match import Match
from farm.graph.pattern import Pattern
from farm.graph.types import Array
from farm.ir import Function

Option = bool | int | float | str
Knobs = Mapping[str, Sequence[Option]]
"""For each option of a code generator the values that it may have; the first is the default."""
Options = Mapping[str, Option]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Part of a graph that one backend runs as one function.

    Attributes
    ----------
    name
        A C identifier: the public name of the function.
    matches
        What the region is made of.
    graph
        The region as a graph of its own: its inputs and outputs are the function's, in order; its constants come along.
    """

    name: str
    backend: str
    matches: tuple[Match, ...]
    graph: Graph

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, in an order in which they can run."""
        return self.graph.nodes

    @property
    def bytes_in(self) -> int:
        """Bytes that go in for each call, constants not counted."""
        return sum(self.graph.types[name].size_bytes for name in self.graph.inputs)

    @property
    def bytes_out(self) -> int:
        """Bytes that come out of each call."""
        return sum(self.graph.types[name].size_bytes for name in self.graph.outputs)


@dataclass(frozen=True, slots=True, eq=False)
class FunctionCode:
    """A region as a function for `farm.build`.

    Attributes
    ----------
    function
        Takes the region's inputs, then `constants`, then its outputs, all with their types and shapes.
    target
        What it is for.
    constants
        Arrays in the form that the function wants (packed, transposed); None: the region's own, in their order.
    fallback
        The same for CPUs: it has the same signature. None: `function` itself, if it is no other language's.
    """

    function: Function
    target: str
    constants: tuple[Array, ...] | None = None
    fallback: Function | None = None


@dataclass(frozen=True, slots=True, eq=False)
class JsonCode:
    """A region as a JSON document, and the program that runs such documents.

    Attributes
    ----------
    document
        Plain JSON: what to do, as the backend's author likes.
    runtime
        C that defines ``void run(const char *document, const void *const *inputs, void *const *outputs)``: `inputs` are
        the region's inputs and then `constants`, each a pointer to its first element, dense and row-major. It is
        compiled for the CPU that the device has, and includes the compiler's own headers only.
    constants
        As in `FunctionCode`.
    options
        For the C compiler, such as ``-DTILE=8``; see `farm.ir.source.OPTION`.
    """

    document: Mapping[str, object]
    runtime: str
    constants: tuple[Array, ...] | None = None
    options: tuple[str, ...] = ()


RegionCode = FunctionCode | JsonCode


class Backend(Protocol):
    """What takes part of a graph: patterns, and a code generator for the regions that they make."""

    @property
    def name(self) -> str:
        """Name in reports and in the options of a partition."""
        ...

    @property
    def patterns(self) -> Sequence[Pattern]:
        """What it takes."""
        ...

    @property
    def joins(self) -> bool:
        """Whether matches that feed each other become one region; else each is a region of its own."""
        ...

    @property
    def knobs(self) -> Knobs:
        """Options of `compile` that may be tuned."""
        ...

    def compile(self, region: Region, options: Options) -> RegionCode:
        """Return a region's code.

        Parameters
        ----------
        options
            A value for each knob.

        Raises
        ------
        FarmError
            It cannot be compiled after all: the region goes back to the CPU and the message is reported.
        """
        ...


class Predicts(Backend, Protocol):
    """A backend that knows how long a region will take; `predict` may be left out."""

    def predict(self, region: Region, options: Options) -> float:
        """Return seconds of one call, the way to the device and back included; raises FarmError if it cannot say."""
        ...


def complete_options(backend: str, knobs: Knobs, given: Options) -> dict[str, Option]:
    """Return a value for each knob, defaults filled in.

    Raises
    ------
    InvalidInput
        There is no such knob, or it has no such value; the message lists what there is.
    """
    for name, value in given.items():
        if name not in knobs:
            known = ", ".join(sorted(knobs)) or "none"
            raise InvalidInput(f"backend {backend}: no option {str(name)[:80]!r}; it has {known}")
        if not any(value == each and type(value) is type(each) for each in knobs[name]):
            values = ", ".join(map(repr, knobs[name]))
            raise InvalidInput(
                f"backend {backend}: option {name} is {value!r}; use one of {values}"
            )
    return {name: given.get(name, values[0]) for name, values in knobs.items()}
