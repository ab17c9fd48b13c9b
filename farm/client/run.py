"""Running one function once, without holding a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from farm.api.v1 import run_pb2 as pb
from farm.client.info import DeviceInfo
from farm.client.transfer import Store
from farm.core.wire import Array
from farm.errors import InfrastructureError
from farm.rpc import error_from_proto


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a run gave.

    Attributes
    ----------
    outputs
        One array for each output or inout parameter, in order.
    samples_ns
        Wall time of each timed call on the device; empty unless repeats were asked for.
    target
        Whose slice of the artifact ran.
    """

    outputs: tuple[Array, ...]
    samples_ns: tuple[int, ...]
    target: str
    device: DeviceInfo


def follow(
    events: Iterable[pb.RunEvent], store: Store, leased: Callable[[DeviceInfo], None] | None
) -> RunOutcome:
    """Read a run's events until it ends.

    Raises
    ------
    FarmError
        What the kernel did wrong, or what the tracker refused.
    """
    device: DeviceInfo | None = None
    for event in events:
        if event.HasField("leased"):
            device = DeviceInfo.from_proto(event.leased)
            if leased is not None:
                leased(device)
        elif event.HasField("result") and device is not None:
            result = event.result
            if result.HasField("error"):
                raise error_from_proto(result.error)
            outputs = store.arrays(result.outputs)
            return RunOutcome(outputs, tuple(result.samples_ns), result.target, device)
    raise InfrastructureError("run: the tracker ended without a result; run again")
