"""A farm in miniature: the pure core with a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from farm_tracker.state import State, step, violations
from farm_tracker.state.commands import Command, PushDesired
from farm_tracker.state.events import (
    AgentReported,
    AttemptReport,
    BuildSubmitted,
    DeviceReport,
    Event,
    JobSubmitted,
    LeaseRequested,
    RunReport,
)
from farm_tracker.state.model import Description, Health, Limits, TimingClass, Use
from farm_tracker.state.run import RunJob
from farm_tracker.state.work import Failure, ItemKind, Module, UnitId, UnitSpec

from farm.core.digest import digest_of
from farm.core.ids import AgentId, AttemptId, DeviceId, Epoch, JobId, LeaseId
from farm.target import Selector

MODULE = Module(digest_of(b"object"), "elf-object", 1, (), "test 1", b"{}")


def spec_of(symbol: str, family: str = "llvm/x86_64") -> UnitSpec:
    return UnitSpec(
        ItemKind.DEVICE, f"target {family}", "0" * 16, family, symbol, digest_of(symbol.encode())
    )


@dataclass
class World:
    """The core, its clock, and the last steps' commands."""

    state: State = field(default_factory=lambda: State(Limits()))
    now: float = 100.0
    commands: tuple[Command, ...] = ()
    checks: bool = True

    def happen(self, event: Event, *, after: float = 0.0) -> tuple[Command, ...]:
        self.now += after
        result = step(self.state, event, self.now)
        self.state.apply(result.changes)
        self.commands = result.commands
        if self.checks:
            assert violations(self.state) == []
        return result.commands

    def only(self, kind: type) -> Command:
        (found,) = [it for it in self.commands if isinstance(it, kind)]
        return found

    def agent(
        self,
        agent_id: str = "agent",
        instance_id: str = "p1",
        *,
        devices: tuple[DeviceReport, ...] = (),
        attempts: tuple[AttemptReport, ...] = (),
        builds: tuple[str, ...] = (),
        slots: int = 1,
        connected: bool = True,
        runs: tuple[RunReport, ...] = (),
    ) -> AgentReported:
        return AgentReported(
            agent_id=AgentId(agent_id),
            instance_id=instance_id,
            version="1",
            builds=builds,
            build_slots=slots,
            devices=devices,
            attempts=attempts,
            hosted_by="test",
            host="here",
            connected=connected,
            runs=runs,
        )

    def device(
        self,
        device_id: str = "dev0",
        use: Use = Use.IDLE,
        epoch: int | None = None,
        health: Health = Health.GOOD,
        targets: tuple[str, ...] = ("t",),
        provides: tuple[str, ...] = (),
        **labels: str,
    ) -> DeviceReport:
        """Return a report; its epoch, unless one is given, is the last that the agent can know of."""
        about = Description(DeviceId(device_id), targets, labels, TimingClass.NATIVE, provides)
        if epoch is None:
            known = self.state.devices.get(DeviceId(device_id))
            epoch = known.epoch - (known.use is Use.RESERVED) if known else 0
        return DeviceReport(about, use, Epoch(epoch), health, "")

    def request(
        self, lease_id: str = "l1", selector: str = "", *, ttl_s: float = 60.0, wait_s: float = 10.0
    ) -> LeaseRequested:
        return LeaseRequested(
            LeaseId(lease_id), Selector.parse(selector), ttl_s, wait_s, "somebody"
        )

    def job(
        self, job_id: str = "j", selector: str = "", *, content: str = "c", **options: Any
    ) -> JobSubmitted:
        given = {"account": "alice", "client_key": "", "limit_s": 10.0, **options}
        return JobSubmitted(
            JobId(job_id),
            content=content,
            selector=Selector.parse(selector),
            run=b"run " + job_id.encode(),
            **given,
        )

    def passed(self, attempt_id: str, epoch: int = 1, **fields: Any) -> RunReport:
        return RunReport(AttemptId(attempt_id), Epoch(epoch), result=b"result", **fields)

    def broke(self, attempt_id: str, code: str, epoch: int = 1, **fields: Any) -> RunReport:
        return RunReport(AttemptId(attempt_id), Epoch(epoch), failure=Failure(code, "m"), **fields)

    def running(self, attempt_id: str, epoch: int = 1, **fields: Any) -> RunReport:
        return RunReport(AttemptId(attempt_id), Epoch(epoch), **fields)

    def join(self, agent_id: str = "agent", *device_ids: str, **options: Any) -> None:
        """Let an agent report, with its devices idle unless `held` gives them an epoch.

        What it says of a run shows that it has heard of that run's epoch.
        """
        held = options.pop("held", {})
        known = self.state.devices
        ran = {
            self.state.run_attempts[it.attempt_id].device_id: it.epoch
            for it in options.get("runs", ())
            if it.attempt_id in self.state.run_attempts
        }
        devices = tuple(
            self.device(it, Use.LEASED, held[it])
            if it in held
            else self.device(it, epoch=max(ran[it], known[it].epoch - 1) if it in ran else None)
            for it in device_ids or ("dev0",)
        )
        after = options.pop("after", 0.0)
        self.happen(self.agent(agent_id, devices=devices, **options), after=after)

    def run_job(self, job_id: str = "j") -> RunJob:
        return self.state.run_jobs[JobId(job_id)]

    def tries(self, job_id: str = "j") -> list[tuple[str, str]]:
        """Return device and state of each attempt of a job."""
        found = [self.state.run_attempts[it] for it in self.run_job(job_id).attempt_ids]
        return [(it.device_id, it.state) for it in found]

    def submit(self, job_id: str, *specs: UnitSpec, keep_going: bool = False) -> BuildSubmitted:
        units = tuple((UnitId(f"{job_id}-u{i}"), spec) for i, spec in enumerate(specs))
        return BuildSubmitted(JobId(job_id), "key", "host", units, keep_going)

    def done(self, attempt_id: str) -> AttemptReport:
        return AttemptReport(AttemptId(attempt_id), module=MODULE, seconds=0.5)

    def failed(self, attempt_id: str, code: str) -> AttemptReport:
        return AttemptReport(AttemptId(attempt_id), failure=Failure(code, "m"), seconds=0.5)

    def spec(self, symbol: str, family: str = "llvm/x86_64") -> UnitSpec:
        return spec_of(symbol, family)

    def desired(self, agent_id: str) -> PushDesired:
        """Return the last desired state that was pushed to an agent in the last step."""
        return [
            it for it in self.commands if isinstance(it, PushDesired) and it.agent_id == agent_id
        ][-1]

    def limit(self, **limits: float) -> None:
        self.state.limits = replace(self.state.limits, **limits)  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def new_world() -> Callable[[], World]:
    return World
