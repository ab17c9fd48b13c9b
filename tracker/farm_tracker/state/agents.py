"""Agents: what their reports and their silence mean.

Owns: which process speaks for an agent, observation, and bringing devices and attempts in line with reports.
Does not own: leases and builds themselves.

Invariant: one process speaks for an agent; a process that was replaced never speaks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.core.ids import Epoch
from farm.core.values import replace
from farm.errors import Fenced
from farm_tracker.state import builds, jobs, leases
from farm_tracker.state.commands import FenceAgent, Warn
from farm_tracker.state.model import HELD, Agent, Device, Health, Lease, Observed, Use
from farm_tracker.state.queue import same_to_demands
from farm_tracker.state.table import OBSERVED, Trigger, follow

if TYPE_CHECKING:
    from farm.core.ids import DeviceId
    from farm_tracker.state.events import AgentDisconnected, AgentReported, DeviceReport
    from farm_tracker.state.state import Draft

FORMER_INSTANCES = 16
UNKILLABLE = "unkillable: what ran on it was not proved gone in time"


def report(draft: Draft, event: AgentReported) -> None:
    """Take in an agent's whole state.

    What its runs came to is taken first: a process that was restarted tells the results that its predecessor kept
    before that one's leases are given up.
    """
    _check_speaks(draft, event)
    for run in event.runs:
        jobs.report(draft, event, run)
        jobs.settle(draft)
    _admit(draft, event, draft.agents.get(event.agent_id))
    former = draft.agents.get(event.agent_id)
    observed = former.observed if former else Observed.UNKNOWN
    base = former or _new_agent(event)
    owned = tuple(
        sorted(it.description.device_id for it in event.devices if _owns(draft, event, it))
    )
    draft.agents[event.agent_id] = replace(
        base,
        instance_id=event.instance_id,
        version=event.version,
        builds=event.builds,
        build_slots=event.build_slots,
        hosted_by=event.hosted_by,
        host=event.host,
        device_ids=tuple(sorted({*base.device_ids, *owned})),
        observed=follow(OBSERVED, observed, Trigger.REPORT, f"agent {event.agent_id}"),
        last_report=draft.now,
        former_instances=_former(former, event.instance_id),
        toolchains=event.toolchains,
    )
    for it in event.devices:
        if it.description.device_id in owned:
            _report_device(draft, event, it)
        elif event.connected:
            owner = draft.devices[it.description.device_id].agent_id
            draft.commands.append(
                Warn(
                    f"agent {event.agent_id}: {it.description.device_id} is agent {owner}'s; ignored"
                )
            )
    for device_id in sorted(set(base.device_ids) - set(owned)):
        _miss_device(draft, event, device_id)
    for attempt in event.attempts:
        builds.report(draft, event, attempt)
    if draft.agents[event.agent_id].free_slots:
        for family in event.builds:
            draft.families[family] = None
    if event.connected:
        draft.push[event.agent_id] = None


def disconnect(draft: Draft, event: AgentDisconnected) -> None:
    """Suspect an agent whose control stream ended; it has until its silence limit to come back."""
    agent = draft.agents.get(event.agent_id)
    if agent is None or agent.instance_id != event.instance_id:
        return
    if agent.observed is not Observed.UNKNOWN:
        observe(draft, agent, Trigger.DISCONNECT)


def observe(draft: Draft, agent: Agent, trigger: Trigger) -> None:
    """Move an agent and its devices to what its silence says; one that is lost loses what it held."""
    observed = follow(OBSERVED, agent.observed, trigger, f"agent {agent.agent_id}")
    forget_at = draft.now + draft.limits.retain_s
    draft.agents[agent.agent_id] = replace(agent, observed=observed, forget_at=forget_at)
    for device_id in agent.device_ids:
        _observe_device(draft, draft.devices[device_id], observed)
    if observed is Observed.OFFLINE:
        draft.note("agent.offline", agent.agent_id, f"silent for {draft.limits.offline_s:g} s")
        cause = f"agent {agent.agent_id} has been silent for {draft.limits.offline_s:g} s"
        for device_id in agent.device_ids:
            _lose_lease(draft, device_id, cause)
        builds.lose_all(draft, agent, cause)


def forget_device(draft: Draft, device: Device) -> None:
    """Drop a device that nobody has heard of for long; only that its epochs were used is remembered."""
    draft.changes.epoch_floor = max(draft.epoch_floor, device.epoch)
    agent = draft.agents[device.agent_id]
    rest = tuple(it for it in agent.device_ids if it != device.device_id)
    draft.agents[agent.agent_id] = replace(agent, device_ids=rest)
    draft.devices.forget(device.device_id)
    draft.note("device.forgotten", device.device_id, f"agent {device.agent_id} had it last")


def _check_speaks(draft: Draft, event: AgentReported) -> None:
    """Refuse a process that was replaced."""
    former = draft.agents.get(event.agent_id)
    if former is None or former.instance_id == event.instance_id:
        return
    if event.instance_id in former.former_instances or not event.connected:
        raise Fenced(
            f"agent {event.agent_id}: process {event.instance_id} was replaced by "
            f"{former.instance_id}; end it"
        )
    if event.yields and former.observed in (Observed.ONLINE, Observed.SUSPECT):
        raise Fenced(
            f"agent {event.agent_id}: process {former.instance_id} on {former.host} speaks for it; end "
            "that one or give this one another id"
        )


def _admit(draft: Draft, event: AgentReported, former: Agent | None) -> None:
    """Let a new process replace the former."""
    if former is None:
        draft.note("agent.joined", event.agent_id, f"on {event.host}")
        return
    if former.instance_id == event.instance_id:
        return
    draft.note("agent.restarted", event.agent_id, f"on {event.host}")
    draft.commands.append(FenceAgent(event.agent_id, former.instance_id))
    cause = f"agent {event.agent_id} was restarted"
    for device_id in former.device_ids:
        _lose_lease(draft, device_id, cause)
    jobs.settle(draft)
    for run in event.runs:  # of attempts that are lost just now
        if not run.is_finished:
            jobs.report(draft, event, run)
    builds.lose_all(draft, former, cause)


def _new_agent(event: AgentReported) -> Agent:
    return Agent(
        agent_id=event.agent_id,
        instance_id=event.instance_id,
        version=event.version,
        builds=event.builds,
        build_slots=event.build_slots,
        hosted_by=event.hosted_by,
        host=event.host,
    )


def _former(agent: Agent | None, instance_id: str) -> tuple[str, ...]:
    if agent is None or agent.instance_id == instance_id:
        return agent.former_instances if agent else ()
    return (*agent.former_instances, agent.instance_id)[-FORMER_INSTANCES:]


def _owns(draft: Draft, event: AgentReported, it: DeviceReport) -> bool:
    """Tell whether a reported device is this agent's: nobody's so far, or of one that is gone."""
    device = draft.devices.get(it.description.device_id)
    if device is None or device.agent_id == event.agent_id:
        return True
    return device.observed in (Observed.OFFLINE, Observed.UNKNOWN)


def _report_device(draft: Draft, event: AgentReported, it: DeviceReport) -> None:
    device_id = it.description.device_id
    device = draft.devices.get(device_id)
    if device is None:
        # It may be one that was forgotten: none of the epochs that it had may come again.
        floor = Epoch(draft.epoch_floor)
        device = Device(description=it.description, agent_id=event.agent_id, epoch=floor)
    elif device.agent_id != event.agent_id:
        device = _adopt(draft, device, event)
    before = draft.devices.get(device_id)
    reported = _as_reported(device, it)
    if reported is not before:
        draft.devices[device_id] = reported
    _report_use(draft, reported, it)
    after = draft.devices[device_id]
    if after.is_free and not (device.is_free and same_to_demands(device, after)):
        draft.freed[device_id] = None


def _as_reported(device: Device, it: DeviceReport) -> Device:
    """Return the device with what its agent says of it; the same value if that is nothing new."""
    keeps = _keeps_health(device, it)
    said = (
        it.description,
        Observed.ONLINE,
        device.health if keeps else it.health,
        device.health_cause if keeps else it.health_cause,
        # A tracker that lost its store must not give an epoch out twice.
        Epoch(max(device.epoch, it.epoch)) if device.use not in HELD else device.epoch,
    )
    known = (
        device.description,
        device.observed,
        device.health,
        device.health_cause,
        device.epoch,
    )
    if said == known:
        return device
    description, observed, health, health_cause, epoch = said
    return replace(
        device,
        description=device.description if description == device.description else description,
        observed=observed,
        health=health,
        health_cause=health_cause,
        epoch=epoch,
        offline_at=None,
    )


def _report_use(draft: Draft, device: Device, it: DeviceReport) -> None:
    device_id = device.device_id
    if device.use in HELD:
        leases.proceed(draft, device, it.use, it.epoch)
        device = draft.devices[device_id]
    if device.use is Use.CLEANING and _proves_clean(device, it):
        draft.devices[device_id] = leases.move(draft, device, Trigger.CLEAN, epoch=device.epoch)
    elif device.use is Use.CLEANING and it.use is Use.IDLE:
        draft.push[device.agent_id] = None  # it may have got the device just now
    elif device.use is Use.IDLE and it.use is not Use.IDLE:
        busy = leases.move(draft, device, Trigger.END, epoch=it.epoch)
        draft.devices[device_id] = replace(busy, use_until=draft.now + draft.limits.clean_s)
        draft.push[device.agent_id] = None


def _proves_clean(device: Device, it: DeviceReport) -> bool:
    """Tell whether an agent saw a device idle after it had heard of the device's last epoch, or of its end.

    What it said before may come late: the grant may have reached it since.
    """
    return it.use is Use.IDLE and it.epoch >= device.epoch


def _keeps_health(device: Device, it: DeviceReport) -> bool:
    """Tell whether the tracker's own verdict (unkillable) stands until the device is proved idle."""
    return (
        device.use is Use.CLEANING
        and not _proves_clean(device, it)
        and device.health is Health.BAD
        and device.health_cause == UNKILLABLE
    )


def _adopt(draft: Draft, device: Device, event: AgentReported) -> Device:
    """Move a device from an agent that is gone to the one that has it now."""
    _lose_lease(draft, device.device_id, f"the device moved to agent {event.agent_id}")
    former = draft.agents.get(device.agent_id)
    if former is not None:
        rest = tuple(it for it in former.device_ids if it != device.device_id)
        forget_at = draft.now + draft.limits.retain_s
        draft.agents[former.agent_id] = replace(former, device_ids=rest, forget_at=forget_at)
    return replace(draft.devices[device.device_id], agent_id=event.agent_id)


def _miss_device(draft: Draft, event: AgentReported, device_id: DeviceId) -> None:
    """Take a device that its agent no longer reports for gone."""
    device = draft.devices[device_id]
    if device.observed is not Observed.OFFLINE:
        _observe_device(draft, device, Observed.OFFLINE)
        _lose_lease(draft, device_id, f"agent {event.agent_id} no longer has the device")


def _observe_device(draft: Draft, device: Device, observed: Observed) -> None:
    """Note what is seen of a device; one that its agent no longer has stays OFFLINE, whatever becomes of the agent."""
    if device.observed not in (observed, Observed.OFFLINE):
        offline_at = device.offline_at
        if observed is Observed.OFFLINE and offline_at is None:
            offline_at = draft.now
        draft.devices[device.device_id] = replace(device, observed=observed, offline_at=offline_at)


def _lose_lease(draft: Draft, device_id: DeviceId, cause: str) -> None:
    lease = live_lease_of(draft, draft.devices[device_id])
    if lease is not None:
        leases.end(draft, lease, Trigger.LOSE, cause)


def live_lease_of(draft: Draft, device: Device) -> Lease | None:
    """Return the lease that holds a device."""
    return draft.leases.get(device.lease_id) if device.lease_id is not None else None
