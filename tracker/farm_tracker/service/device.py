"""DeviceService on the wire. Owns: nothing else. Invariant: lists are sorted, and only read the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farm.api.v1 import device_pb2, device_pb2_grpc
from farm.core.ids import DeviceId
from farm.target import Selector
from farm_tracker.service.convert import agent_to_proto, device_to_proto
from farm_tracker.service.streams import errors_to_status

if TYPE_CHECKING:
    import grpc

    from farm_tracker.state.state import State


class DeviceService(device_pb2_grpc.DeviceServiceServicer):
    """Shows one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def ListDevices(
        self,
        request: device_pb2.ListDevicesRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> device_pb2.ListDevicesResponse:
        """Return the devices that match."""
        async with errors_to_status(context):
            selector = Selector.parse(request.selector)
            return device_pb2.ListDevicesResponse(
                devices=[
                    device_to_proto(device)
                    for _, device in sorted(self._state.devices.items())
                    if selector.matches(device.labels)
                ]
            )
        raise AssertionError("unreachable")

    async def ListAgents(
        self,
        request: device_pb2.ListAgentsRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> device_pb2.ListAgentsResponse:
        """Return the agents that have a device that matches, with those devices."""
        async with errors_to_status(context):
            selector = Selector.parse(request.selector)
            agents = [agent_to_proto(agent) for _, agent in sorted(self._state.agents.items())]
            if selector.terms:
                agents = [it for it in agents if self._keep_matching(it, selector)]
            return device_pb2.ListAgentsResponse(agents=agents)
        raise AssertionError("unreachable")

    def _keep_matching(self, agent: device_pb2.Agent, selector: Selector) -> bool:
        """Drop the devices that do not match; tell whether one is left."""
        found = [self._state.devices.get(DeviceId(it)) for it in agent.device_ids]
        kept = [it.device_id for it in found if it is not None and selector.matches(it.labels)]
        agent.device_ids[:] = kept
        return bool(kept)
