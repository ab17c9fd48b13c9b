"""``farm devices``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from farm.cli.connection import connect, tracker_option
from farm.cli.output import Output, output_option, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farm.client import DeviceInfo


@click.command("devices")
@click.argument("selector", default="")
@tracker_option
@output_option
def command(selector: str, tracker: str | None, output: Output) -> None:
    """List the devices of a farm.

    SELECTOR picks some: key=value, key!=value or key, separated by commas, over the labels; device_id=NAME is one
    device. A device takes work if it is enabled, online, good and idle.

    \b
    Example:
      farm devices arch=aarch64

    \b
    JSON: {"devices": [{"device_id", "agent_id", "targets", "labels", "timing_class",
           "admin", "observed", "health", "health_cause", "use", "epoch"}]}
    """  # noqa: D301 - click's mark
    with connect(tracker) as client:
        found = client.devices(selector)
    value = {"devices": [device_json(device) for device in found]}
    nothing = f"no device matches {selector}" if selector else "no devices"
    output.result(value, devices_text(found) if found else nothing)


def device_json(device: DeviceInfo) -> dict[str, object]:
    """Return a device for JSON."""
    return {**asdict(device), "targets": list(device.targets), "labels": dict(device.labels)}


def devices_text(devices: Sequence[DeviceInfo]) -> str:
    """Return a table of devices, below it why some are ill, and which confine nothing."""
    header = (
        "DEVICE",
        "ADMIN",
        "OBSERVED",
        "HEALTH",
        "USE",
        "TIMING",
        "AGENT",
        "LABELS",
        "TARGETS",
    )
    rows = [
        (
            device.device_id,
            device.admin,
            device.observed,
            device.health,
            device.use,
            device.timing_class,
            device.agent_id,
            ",".join(f"{key}={value}" for key, value in device.labels.items()),
            "; ".join(device.targets),
        )
        for device in devices
    ]
    causes = [f"{d.device_id}: {d.health_cause}" for d in devices if d.health_cause]
    return "\n".join([table(header, rows), *causes, *_unconfined(devices)])


def _unconfined(devices: Sequence[DeviceInfo]) -> list[str]:
    """Return a line about devices without a sandbox, if there are any."""
    found = [it for it in devices if it.labels.get("sandbox") == "none"]
    if not found:
        return []
    shown = ", ".join(
        f"{it.device_id} ({it.labels.get('sandbox-none', 'unknown')})" for it in found
    )
    return [
        f"UNCONFINED, for trusted users only: kernels run without a sandbox on {shown}; "
        "choose sandbox=bwrap to avoid that"
    ]
