"""Running a built graph on what has loaded its artifact: this process, or a session on a device of a farm.

Owns: calling host functions in order, and timing regions one by one. Does not own: the plan, loading.

Invariant: outputs have the types of the graph's values.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from farm.graph.build import GraphBuild
from farm.graph.plan import Segment, Step
from farm.graph.reference import checked_inputs
from farm.graph.types import Array
from farm.runtime.interface import LoadedModule


@dataclass(frozen=True, slots=True)
class Measured:
    """What a region took on a device.

    Attributes
    ----------
    target
        Whose code ran: an accelerator's, or a CPU's.
    median_s
        Of one call, on the clock of the device's host, alone.
    """

    target: str
    median_s: float


class GraphModule:
    """A built graph, loaded.

    Parameters
    ----------
    module
        What `farm.load` or a session's `load` gave for the artifact.
    """

    def __init__(self, built: GraphBuild, module: LoadedModule | Mapping[str, Any]) -> None:
        self.built = built
        self._module = module

    def __call__(self, inputs: Sequence[Array] | Mapping[str, Array]) -> tuple[Array, ...]:
        """Compute the graph.

        Parameters
        ----------
        inputs
            One array for each input of the graph: in order, or by name.

        Raises
        ------
        InvalidArguments
            An array does not fit; nothing was called.
        FarmError
            As the module's own calls.
        """
        values = checked_inputs(self.built.graph, inputs)
        for segment in self.built.plan.segments:
            values |= self._run(segment, values)
        return tuple(values[name] for name in self.built.graph.outputs)

    def measure(
        self, inputs: Sequence[Array] | Mapping[str, Array], repeat: int = 10
    ) -> dict[str, Measured]:
        """Time each region alone, with the values that it gets from the others; by the region's name."""
        values = checked_inputs(self.built.graph, inputs)
        found: dict[str, Measured] = {}
        for step in self.built.plan.steps:
            arrays = self._arrays(step, values)
            values |= dict(zip(step.outputs, self._call(step.symbol, arrays), strict=True))
            samples = self._time(step.symbol, arrays, repeat)
            found[step.symbol] = Measured(
                self._target(step.symbol), statistics.median(samples) / 1e9
            )
        return found

    def targets(self) -> dict[str, str]:
        """Return, for each region by name, whose code the device runs for it."""
        return {step.symbol: self._target(step.symbol) for step in self.built.plan.steps}

    def _run(self, segment: Segment, values: Mapping[str, Array]) -> dict[str, Array]:
        outputs = self._call(segment.symbol, self._arrays(segment, values))
        return dict(zip(segment.outputs, outputs, strict=True))

    def _arrays(self, part: Segment | Step, values: Mapping[str, Array]) -> list[Array]:
        constants = self.built.plan.constants
        return [*(values[n] for n in part.inputs), *(constants[n] for n in part.constants)]

    def _call(self, symbol: str, arrays: Sequence[Array]) -> Sequence[Array]:
        if isinstance(self._module, LoadedModule):
            return self._module.call(symbol, arrays).outputs
        result = self._module[symbol](*arrays)
        return result if isinstance(result, tuple) else (cast(Array, result),)

    def _time(self, symbol: str, arrays: Sequence[Array], repeat: int) -> Sequence[int]:
        if isinstance(self._module, LoadedModule):
            return self._module.call(symbol, arrays, repeat).samples_ns
        samples: Sequence[int] = self._module[symbol].time(*arrays, repeat=repeat).samples_ns
        return samples

    def _target(self, symbol: str) -> str:
        if isinstance(self._module, LoadedModule):
            return self._module.function(symbol).target
        return str(self._module[symbol].target)
