"""A plan: everything of one simulated farm that a seed decides before it starts.

Owns: the topology, the clients, the fault schedule, drawn from the seed. Does not own: carrying it out (`farm`).

Invariant: a plan is a value; leaving a fault or a client out gives another valid plan (that is how a failing one is
made small).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from farm_tracker.state.demand import Variant
from farm_tracker.state.model import Limits

from simulation.accounts import ACCOUNTS
from simulation.accounts import LIMITS as ACCOUNT_LIMITS
from simulation.clients import FAMILIES, BuildPlan, JobPlan, LeasePlan

FAULTS_END_S = 25.0
RUNS = {
    "d0": ("ea",),
    "d1": ("llvm -mtriple=x86_64-linux-gnu",),
    "d2": ("llvm -mtriple=x86_64-linux-gnu", "ea"),
}
"""Targets of each device."""
X86, EA = Variant("x", "llvm/x86_64", ()), Variant("e", "ea", ())
BIG = Variant("b", "llvm/x86_64", ("size:big",))
"""What no device has."""
CRASH_POINTS = ("before the commit", "after the commit", "between commands")

LIMITS = Limits(
    heartbeat_s=2.5,
    suspect_s=4.0,
    offline_s=10.0,
    prepare_s=12.0,
    clean_s=15.0,
    attempt_s=8.0,
    attempt_grace_s=5.0,
    unit_wait_s=25.0,
    job_s=60.0,
    retain_s=20.0,
    run_setup_s=15.0,
    unwatched_s=6.0,
    job_retain_s=1e6,
    device_retain_s=6.0,
    expired_at_once=3,
    half_life_s=20.0,
    log_bytes=20,
)


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """One agent: its host, its devices, what it builds."""

    agent_id: str
    host: str
    devices: tuple[str, ...]
    builds: tuple[str, ...]
    slots: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong: when, what, with whom, for how long; `detail` depends on what."""

    at: float
    kind: str
    target: str = ""
    for_s: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        """Return it for a story."""
        length = f" for {self.for_s:.2f} s" if self.for_s else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.at:.3f} {self.kind} {self.target}{length}{detail}"


@dataclass(frozen=True, slots=True)
class Plan:
    """One farm and what happens to it."""

    seed: int
    agents: tuple[AgentPlan, ...]
    leases: tuple[LeasePlan, ...]
    builds: tuple[BuildPlan, ...]
    jobs: tuple[JobPlan, ...]
    faults: tuple[Fault, ...]
    limits: Limits
    nasty_kills: float
    is_flaky: bool


def plan_of(seed: int) -> Plan:
    """Draw the plan of a seed."""
    source = random.Random(f"{seed} plan")
    agents = _agents(source)
    leases = tuple(_lease(source, index) for index in range(source.randint(0, 4)))
    builds = tuple(_build(source, index) for index in range(source.randint(0, 3)))
    jobs = tuple(_job(source, index) for index in range(source.randint(0, 4)))
    count = source.choice((0, 1, 2, 3, 4, 6, 9))
    faults = sorted(
        (_fault(source, agents) for _ in range(count)), key=lambda it: (it.at, it.kind, it.target)
    )
    nasty = source.choice((0.0, 0.0, 0.1, 0.3))
    flaky = source.random() < 0.7
    return Plan(seed, agents, leases, builds, jobs, tuple(faults), LIMITS, nasty, flaky)


def _agents(source: random.Random) -> tuple[AgentPlan, ...]:
    first = AgentPlan("a", "h1", ("d0", "d1")[: source.randint(1, 2)], FAMILIES[:1], 1)
    agents = [first]
    if source.random() < 0.6:
        agents.append(AgentPlan("b", "h2", ("d2",), FAMILIES, source.randint(1, 2)))
    if source.random() < 0.15:  # a second agent that claims a device of the first, on the same host
        agents.append(AgentPlan("c", "h1", ("d0",), FAMILIES[1:], 1))
    return tuple(agents)


def _lease(source: random.Random, index: int) -> LeasePlan:
    return LeasePlan(
        name=f"lease{index}",
        at=source.uniform(0.0, FAULTS_END_S * 0.8),
        account=source.choice(ACCOUNTS),
        selector=source.choice(("", "", "", "device_id=d0", "agent_id=a", "agent_id!=a")),
        ttl_s=source.choice((3.0, 8.0, 20.0)),
        wait_s=source.choice((0.0, 5.0, 40.0)),
        use_s=source.choice((0.05, 0.5, 3.0, 12.0)),
        renews=source.random() < 0.5,
        end=source.choice(("release", "release", "repeat", "vanish", "leave queue")),
    )


def _build(source: random.Random, index: int) -> BuildPlan:
    names = ("f", "g", "h", "wrong1", "slow1", "hang1")
    return BuildPlan(
        name=f"build{index}",
        at=source.uniform(0.0, FAULTS_END_S * 0.8),
        symbols=tuple(source.sample(names, source.randint(1, 3))),
        family=source.choice(FAMILIES),
        keep_going=source.random() < 0.5,
        leave_after_s=source.choice((0.0, 0.0, 0.0, 0.2, 4.0)),
    )


def _job(source: random.Random, index: int) -> JobPlan:
    return JobPlan(
        name=f"job{index}",
        at=source.uniform(0.0, FAULTS_END_S * 0.8),
        work=source.choice(("pass", "pass", "pass", "crash", "hang")),
        account=source.choice(ACCOUNTS),
        variants=source.choice(((), (), (X86,), (EA, X86), (EA,), (BIG,))),
        run_s=source.choice((0.05, 1.0, 4.0)),
        selector=source.choice(("", "", "device_id=d0", "agent_id=a")),
        priority=source.choice((0, 0, 5)),
        queue_limit_s=source.choice((20.0, 60.0)),
        waits=source.random() < 0.7,
        submits=source.choice((1, 1, 2)),
        cancel_after_s=source.choice((0.0, 0.0, 0.0, 0.1, 3.0)),
        leave_after_s=source.choice((0.0, 0.0, 0.0, 0.5)),
        unwatched=source.random() < 0.3,
    )


def _fault(source: random.Random, agents: tuple[AgentPlan, ...]) -> Fault:
    at = source.uniform(0.0, FAULTS_END_S)
    agent = source.choice(agents)
    for_s = source.choice((source.uniform(0.1, 3.0), source.uniform(3.0, 16.0)))
    kind, target, details = source.choice(KINDS)
    targets = {
        "": "",
        "agent": agent.agent_id,
        "host": agent.host,
        "device": source.choice(agent.devices),
        "count": str(source.randint(1, 3)),
        "account": source.choice(ACCOUNTS),
    }
    return Fault(at, kind, targets[target], for_s, source.choice(details))


KINDS = (
    ("kill tracker", "", ("",)),
    ("kill tracker", "", ("",)),
    *(("kill tracker at", "count", CRASH_POINTS),) * 3,
    *(("kill agent", "agent", ("",)),) * 2,
    ("stop agent", "agent", ("",)),
    *(("freeze agent", "agent", ("", "second")),) * 2,
    *(("cut", "agent", ("up", "down", "both")),) * 2,
    *(("break stream", "agent", ("", "lose")),) * 2,
    ("slow network", "agent", ("",)),
    ("duplicate", "agent", ("",)),
    ("agent disk full", "host", ("",)),
    ("tracker disk full", "", ("",)),
    ("clock jump", "", ("-3600", "-5", "5", "3600")),
    ("suspend host", "agent", ("",)),
    ("sick device", "device", ("",)),
    *(("wish", "device", ("DRAINING", "MAINTENANCE")),) * 2,
    *(("limit account", "account", tuple(ACCOUNT_LIMITS)),) * 3,
)
"""What may go wrong: kind, what it hits, details; more often than once if it finds more."""
