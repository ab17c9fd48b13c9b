"""DeviceService on the wire. Owns: nothing else. Invariant: lists are sorted, and only read the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farm.api.v1 import device_pb2, device_pb2_grpc
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
        """Return every agent."""
        agents = [agent_to_proto(agent) for _, agent in sorted(self._state.agents.items())]
        return device_pb2.ListAgentsResponse(agents=agents)
