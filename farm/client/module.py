"""What a session has loaded: modules and their functions, on a device.

Owns: how they look to their user. Does not own: carrying calls out (`farm.client.session`).

Invariant: arrays are checked against the signature before anything of their call is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from farm.api.v1 import session_pb2
from farm.artifact.signature import check_inputs
from farm.client.info import Timing
from farm.core.limits import DEFAULT_LIMIT_S
from farm.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from farm.artifact import Signature
    from farm.client.layout import Layout
    from farm.client.session import Session


@dataclass(frozen=True, slots=True, eq=False)
class RemoteFunction:
    """A function on a device; call it with one array for each input or inout parameter.

    Attributes
    ----------
    target
        Whose slice of the artifact serves this device.
    layout
        How its arrays travel; None if some are too large to be in a message.
    """

    session: Session
    module_id: int
    symbol: str
    target: str
    signature: Signature
    layout: Layout | None

    def __call__(self, *arrays: Any, limit_s: float = DEFAULT_LIMIT_S) -> Any:  # noqa: ANN401 - one array or several
        """Call it and return its output, or a tuple of them if it has several.

        Raises
        ------
        InvalidArguments
            An array does not fit the signature; nothing was sent.
        KernelFailed
            The kernel crashed or faulted; the session goes on.
        TimeLimit
            It ran longer than `limit_s`.
        """
        if self.layout is not None:
            return self.session.call_one(self, arrays, limit_s)
        outputs, _ = self.session.call(self, arrays, 0, limit_s)
        return outputs[0] if len(outputs) == 1 else outputs

    def time(self, *arrays: Any, repeat: int = 10, limit_s: float = DEFAULT_LIMIT_S) -> Timing:
        """Call it once, then `repeat` times on the clock of the device's host."""
        if repeat < 1:
            raise InvalidInput(f"time: repeat is {repeat}; use at least 1")
        _, samples_ns = self.session.call(self, arrays, repeat, limit_s)
        return Timing(samples_ns, self.session.device.timing_class)

    def request(self, arrays: Sequence[Any]) -> session_pb2.CallRequest:
        """Return the message of a call; large arrays are stored now. Raises InvalidArguments."""
        check_inputs(self.symbol, self.signature, arrays)
        inputs = self.session.tensors(arrays)
        return session_pb2.CallRequest(module_id=self.module_id, symbol=self.symbol, inputs=inputs)


class RemoteModule(Mapping[str, RemoteFunction]):
    """The functions of a loaded artifact, by name."""

    def __init__(self, session: Session, functions: Mapping[str, RemoteFunction]) -> None:
        self.session = session
        self._functions = MappingProxyType(dict(functions))

    def __getitem__(self, symbol: str) -> RemoteFunction:
        """Return a function; raises NotFound if the artifact has none of that name for this device."""
        if symbol not in self._functions:
            known = ", ".join(sorted(self._functions))
            raise NotFound(
                f"function {symbol}: not in this artifact, or no slice of it runs on "
                f"{self.session.device.device_id}; there is {known}"
            )
        return self._functions[symbol]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._functions)

    def __len__(self) -> int:
        """Return the number of functions."""
        return len(self._functions)

    def time(
        self,
        symbol: str,
        *arrays: Any,
        repeat: int = 10,
        limit_s: float = DEFAULT_LIMIT_S,
    ) -> Timing:
        """Time a function: see `RemoteFunction.time`."""
        return self[symbol].time(*arrays, repeat=repeat, limit_s=limit_s)

    def batch(
        self, calls: Iterable[tuple[str, Sequence[Any]]], *, limit_s: float = DEFAULT_LIMIT_S
    ) -> list[Any]:
        """Call functions in order, many in a message: much faster than one by one if they are short.

        Parameters
        ----------
        calls
            For each the name of a function and its arrays.
        limit_s
            For the calls of a message together (at most 2,000 and 2 MiB); 0.01 to 600 s.

        Returns
        -------
        list
            For each call what the function itself would return.

        Raises
        ------
        FarmError
            As a call of the function; ``details["call"]`` is the index of the call that failed. Calls after it
            were not made, and what those before it gave is lost.
        """
        planned = ((self[symbol], arrays) for symbol, arrays in calls)
        return self.session.call_many(planned, limit_s)
