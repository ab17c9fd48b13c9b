"""Random histories: whatever happens, in whatever order, what must hold holds."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
from farm_tracker.state import deadlines, step, violations
from farm_tracker.state.account import NO_LIMITS, AccountLimits
from farm_tracker.state.commands import (
    EndSession,
    GrantLease,
    JobAccepted,
    JobChanged,
    JobEnded,
    PushDesired,
    UnitChanged,
)
from farm_tracker.state.demand import Variant
from farm_tracker.state.events import (
    AccountLimited,
    AdminSet,
    AgentDisconnected,
    BuildCancelled,
    BuildMerged,
    JobCancelled,
    JobWatched,
    LeaseReleased,
    LeaseRenewed,
    LeaseRevoked,
    Tick,
)
from farm_tracker.state.invariants import CHECKS
from farm_tracker.state.model import Admin, Health, Use
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from farm.core.digest import digest_of
from farm.errors import FarmError, Fenced, InvalidTransition
from farm.target import Selector

AGENTS = ("a", "b", "c")
DEVICES = {"a": ("d0", "d1"), "b": ("d2",), "c": ("d0",)}
FAMILIES = {"a": ("x",), "b": ("x", "y"), "c": ("y",)}
SELECTORS = ("", "agent_id=a", "agent_id!=a", "device_id=d0", "slow=1")
RUNS = {
    "d0": ("ea",),
    "d1": ("llvm -mtriple=x86_64-linux-gnu",),
    "d2": ("llvm -mtriple=x86_64-linux-gnu", "ea"),
}
X86 = Variant("x", "llvm/x86_64", ())
EA = Variant("e", "ea", ())
BIG = Variant("b", "llvm/x86_64", ("size:big",))
TERMINAL = ("RELEASED", "EXPIRED", "REVOKED", "LOST")


class Only:
    """A state of which nothing but some tables, and the indices over them, can be read."""

    INDICES: ClassVar = {
        "free_devices": {"devices"},
        "matching": {"devices"},
        "queue": {"leases", "run_jobs"},
        "client_jobs": {"run_jobs"},
        "epoch_floor": {"devices"},
        "queued_units": {"units"},
        "open_units": {"units"},
        "limits": set(),
    }

    def __init__(self, state, tables):
        self._state = state
        self._tables = set(tables)

    def __getattr__(self, name):
        assert self.INDICES.get(name, {name}) <= self._tables, f"{name} is read"
        return getattr(self._state, name)


class History(RuleBasedStateMachine):
    """Agents that come, go, restart and lie; clients that ask, leave and repeat."""

    make_world = None

    @initialize()
    def begin(self):
        self.world = type(self).make_world()
        self.world.checks = False
        self.world.limit(retain_s=50.0, unit_wait_s=40.0, job_s=200.0)
        self.world.limit(job_retain_s=300.0, half_life_s=20.0, account_held=2, account_queued=6)
        self.world.limit(backoff_s=4.0, device_retain_s=30.0, expired_at_once=3)
        self.count = 0
        self.instances = dict.fromkeys(AGENTS, 1)
        self.epochs = {}
        self.live = {}
        self.outcomes = {}
        self.desired = {}
        self.ends = {}
        self.keys = {}
        self.running = {}
        self.accounts = {}

    def happen(self, event, after=0.0):
        self.world.now += after
        before = self.snapshot()
        try:
            result = step(self.world.state, event, self.world.now)
        except InvalidTransition:
            raise
        except FarmError:
            assert self.snapshot() == before
            return
        assert self.snapshot() == before, "a step changed the state before it was applied"
        again = step(self.world.state, event, self.world.now)
        assert (result.changes, repr(result.commands)) == (again.changes, repr(again.commands))
        self.world.state.apply(result.changes)
        for command in result.commands:
            self.observe(command)

    def snapshot(self):
        state = self.world.state
        tables = (
            state.agents,
            state.devices,
            state.leases,
            state.jobs,
            state.units,
            state.attempts,
            state.run_jobs,
            state.run_attempts,
            state.accounts,
        )
        return tuple(dict(it) for it in tables)

    def observe(self, command):
        match command:
            case GrantLease(lease, device):
                assert lease.demand.can_run(device.description), "a device that cannot run it"
                assert lease.epoch > self.epochs.get(device.device_id, 0), "an epoch came twice"
                assert device.device_id not in self.live, "two holders of one device"
                self.epochs[device.device_id] = lease.epoch
                self.live[device.device_id] = lease.lease_id
            case EndSession(lease_id, _):
                (device_id,) = [key for key, it in self.live.items() if it == lease_id]
                del self.live[device_id]
            case JobAccepted(asked, job_id, existed):
                assert existed == (asked != job_id)
                assert job_id in self.world.state.run_jobs, "acknowledged but not there"
                self.keys.setdefault(job_id, self.world.state.run_jobs[job_id].client_key)
            case JobChanged(job_id):
                self.check_end(job_id)
            case UnitChanged(unit, _) if unit.module is not None:
                known = self.outcomes.setdefault(unit.unit_id, unit.module)
                assert known == unit.module, "an outcome changed"
            case JobEnded(job_id, state, _):
                if state == "BUILDING":
                    self.happen(BuildMerged(job_id, digest_of(job_id.encode())))
            case PushDesired():
                self.desired[command.agent_id] = command

    def check_end(self, job_id):
        job = self.world.state.run_jobs[job_id]
        if not job.is_open:
            end = (job.outcome, job.verdict, job.result, job.failure)
            assert self.ends.setdefault(job_id, end) == end, "an end changed"
        assert job_id not in self.ends or not job.is_open, "an ended job began anew"

    def fresh(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    @rule(
        agent=st.sampled_from(AGENTS),
        after=st.sampled_from([0.0, 0.5, 3.0]),
        restart=st.sampled_from([False, False, False, False, True]),
        connected=st.booleans(),
        uses=st.lists(st.sampled_from(list(Use)), min_size=2, max_size=2),
        honest=st.sampled_from([True, True, True, False]),
        health=st.sampled_from([*[Health.GOOD] * 5, Health.BAD]),
        outcome=st.sampled_from(["running", "done", "user", "infra"]),
        run=st.sampled_from(["none", "running", "running", "done", "user", "infra", "lost", "off"]),
        drop=st.sampled_from([False, False, False, True]),
    )
    def report(self, agent, after, restart, connected, uses, honest, health, outcome, run, drop):
        if restart and connected:
            self.instances[agent] += 1
        lies = None if honest else uses
        self.tell(agent, after, connected, lies, health, outcome, drop, run)

    def tell(
        self,
        agent,
        after=0.0,
        connected=True,
        lies=None,
        health=Health.GOOD,
        outcome="running",
        drop=False,
        run="running",
    ):
        devices = []
        for index, device_id in enumerate(DEVICES[agent]):
            known = self.world.state.devices.get(device_id)
            held = known is not None and known.lease_id is not None
            use, epoch = (Use.LEASED, known.epoch) if held else (Use.IDLE, 0)
            if lies is not None:
                use = lies[index]
                epoch = 0 if use is Use.IDLE or known is None else known.epoch
            if not (drop and device_id == "d1"):
                label = {"slow": "1"} if device_id == "d2" else {}
                label |= {"targets": RUNS[device_id]}
                devices.append(self.world.device(device_id, use, epoch, health, **label))
        event = self.world.agent(
            agent,
            f"p{self.instances[agent]}",
            devices=tuple(devices),
            attempts=tuple(self.outcomes_of(agent, outcome)),
            builds=FAMILIES[agent],
            slots=1 + (agent == "b"),
            connected=connected,
            runs=tuple(self.runs_of(agent, run)),
        )
        self.happen(event, after)

    def runs_of(self, agent, what):
        """Report that of every run attempt that the agent was ever told of, or of the last if `off`."""
        order = self.desired.get(agent)
        known = self.running.setdefault(agent, {})
        for it in order.runs if order is not None else ():
            known[it.attempt.attempt_id] = it.attempt.epoch
        for attempt_id, epoch in known.items():
            match what:
                case "running":
                    yield self.world.running(attempt_id, epoch, log=(digest_of(b"log"),))
                case "done":
                    yield self.world.passed(attempt_id, epoch)
                case "off":
                    yield self.world.passed(attempt_id, epoch + 1)
                case "user" | "infra" | "lost":
                    codes = {"user": "TIME_LIMIT", "infra": "STORE_FULL", "lost": "DEVICE_LOST"}
                    yield self.world.broke(attempt_id, codes[what], epoch)

    def outcomes_of(self, agent, outcome):
        """Report that outcome for every attempt that the agent was ever told of last."""
        order = self.desired.get(agent)
        for it in order.builds if order is not None else ():
            if outcome == "done":
                yield self.world.done(it.attempt_id)
            elif outcome != "running":
                code = "INVALID_FUNCTION" if outcome == "user" else "INFRASTRUCTURE"
                yield self.world.failed(it.attempt_id, code)

    @precondition(lambda self: max(self.instances.values()) > 1)
    @rule(agent=st.sampled_from(AGENTS))
    def report_of_a_former_process(self, agent):
        known = self.world.state.agents.get(agent)
        for instance in known.former_instances if known is not None else ():
            with pytest.raises(Fenced, match="was replaced"):
                step(self.world.state, self.world.agent(agent, instance), self.world.now)

    @rule()
    def all_go_on(self):
        for agent in AGENTS:
            self.tell(agent, outcome="done", run="done")

    @rule(agent=st.sampled_from(AGENTS))
    def disconnect(self, agent):
        self.happen(AgentDisconnected(agent, f"p{self.instances[agent]}"))

    @rule(after=st.sampled_from([0.1, 4.0, 6.0, 30.0, 60.0]))
    def wait(self, after):
        self.happen(Tick(), after)

    @rule(
        selector=st.sampled_from(SELECTORS),
        ttl_s=st.sampled_from([1.0, 5.0, 60.0]),
        wait_s=st.sampled_from([0.0, 3.0, 100.0]),
    )
    def request(self, selector, ttl_s, wait_s):
        lease_id = self.fresh("l")
        self.happen(self.world.request(lease_id, selector, ttl_s=ttl_s, wait_s=wait_s))

    @rule(
        selector=st.sampled_from(SELECTORS),
        account=st.sampled_from(["local", "alice"]),
        key=st.sampled_from(["", "", "k1", "k2"]),
        content=st.sampled_from(["c", "c", "d"]),
        priority=st.sampled_from([0, 0, 5]),
        wait=st.booleans(),
        unwatched=st.booleans(),
        limit_s=st.sampled_from([5.0, 100.0]),
        variants=st.sampled_from([(), (), (X86,), (X86, EA), (BIG,)]),
    )
    def submit_job(
        self, selector, account, key, content, priority, wait, unwatched, limit_s, variants
    ):
        event = self.world.job(
            self.fresh("r"),
            selector,
            content=content,
            account=account,
            client_key=key,
            priority=priority,
            wait_for_device=wait,
            cancel_when_unwatched=unwatched,
            queue_limit_s=limit_s,
            variants=variants,
        )
        self.happen(event)

    @precondition(lambda self: self.world.state.run_jobs)
    @rule(data=st.data(), what=st.sampled_from("cwu"))
    def cancel_or_watch(self, data, what):
        job_id = data.draw(st.sampled_from(sorted(self.world.state.run_jobs)))
        self.happen(JobCancelled(job_id) if what == "c" else JobWatched(job_id, what == "w"))

    @rule(
        selector=st.sampled_from(SELECTORS),
        admin=st.sampled_from([Admin.ENABLED, Admin.ENABLED, *Admin]),
        until_s=st.sampled_from([0.0, 5.0]),
    )
    def set_admin(self, selector, admin, until_s):
        self.happen(AdminSet(Selector.parse(selector), admin, "test", until_s, "olga"))

    @rule(
        account=st.sampled_from(["local", "alice"]),
        held=st.sampled_from([None, 0, 1, 3]),
        queued=st.sampled_from([None, 0, 2]),
        device_s=st.sampled_from([None, None, 0.0, 5.0, 40.0]),
        window_s=st.sampled_from([10.0, 100.0]),
    )
    def limit_account(self, account, held, queued, device_s, window_s):
        limits = AccountLimits(held, queued, device_s, window_s)
        self.happen(AccountLimited(account, limits, "olga"))

    def some_lease(self, data):
        return data.draw(st.sampled_from(sorted(self.world.state.leases)))

    @precondition(lambda self: self.world.state.leases)
    @rule(data=st.data(), off=st.sampled_from([0, 0, 0, 1, -1]), what=st.sampled_from("rrnv"))
    def end_or_renew(self, data, off, what):
        lease = self.world.state.leases[self.some_lease(data)]
        if off and lease.is_live and what != "v" and lease.job_id is None:
            self.refused_for_its_epoch(lease, lease.epoch + off)
        match what:
            case "r":
                self.happen(LeaseReleased(lease.lease_id, lease.epoch + off))
            case "n":
                self.happen(LeaseRenewed(lease.lease_id, lease.epoch + off, 5.0))
            case "v":
                self.happen(LeaseRevoked(lease.lease_id, "test"))

    def refused_for_its_epoch(self, lease, epoch):
        for event in (
            LeaseReleased(lease.lease_id, epoch),
            LeaseRenewed(lease.lease_id, epoch, 5.0),
        ):
            with pytest.raises(Fenced):
                step(self.world.state, event, self.world.now)

    @rule(
        names=st.lists(st.sampled_from(["f", "g", "h"]), min_size=1, max_size=3, unique=True),
        family=st.sampled_from(["x", "y"]),
        keep_going=st.booleans(),
    )
    def submit(self, names, family, keep_going):
        specs = [self.world.spec(name, family) for name in names]
        self.happen(self.world.submit(self.fresh("j"), *specs, keep_going=keep_going))

    @precondition(lambda self: self.world.state.jobs)
    @rule(data=st.data())
    def cancel(self, data):
        self.happen(BuildCancelled(data.draw(st.sampled_from(sorted(self.world.state.jobs)))))

    @invariant()
    def holds(self):
        assert violations(self.world.state) == []
        for check, tables in CHECKS:
            assert list(check(Only(self.world.state, tables))) == []
        soonest = min((it.at for _, it in deadlines(self.world.state)), default=None)
        assert self.world.state.next_deadline() == soonest

    @invariant()
    def live_leases_are_those_told(self):
        held = {
            key: it.lease_id
            for key, it in self.world.state.devices.items()
            if it.lease_id is not None
        }
        assert held == self.live

    @invariant()
    def accounts_keep_their_limits(self):
        """Nobody gets one more device while a limit is reached, whoever set it when."""
        for name, account in self.world.state.accounts.items():
            former = self.accounts.get(name)
            if former is not None and account.held > former.held:
                most = account.max_held(self.world.state.limits)
                assert account.held <= most, f"{account} holds more than {most}"
            spent_s = account.spent_s(self.world.now)
            assert spent_s >= -1e-6, f"{account} spent {spent_s}"
        self.accounts = dict(self.world.state.accounts)

    @invariant()
    def budgets_are_kept(self):
        for unit in self.world.state.units.values():
            limits = self.world.state.limits
            assert unit.tries <= 1 + limits.infra_budget + limits.lost_budget

    @invariant()
    def ends_stand(self):
        for job_id in self.world.state.run_jobs:
            self.check_end(job_id)

    def teardown(self):
        """Once everybody is silent, everything comes to an end and is forgotten."""
        for name in list(self.world.state.accounts):
            self.happen(AccountLimited(name, NO_LIMITS))
        for _ in range(12):
            self.happen(Tick(), 250.0)
            while (self.world.state.next_deadline() or math.inf) <= self.world.now:
                self.happen(Tick())  # a step lets few deadlines pass
            assert violations(self.world.state) == []
        state = self.world.state
        assert (state.leases, state.jobs, state.units, state.attempts) == ({}, {}, {}, {})
        assert (state.run_jobs, state.run_attempts, state.accounts) == ({}, {}, {})
        assert self.live == {}


def test_any_history_keeps_the_invariants(new_world):
    machine = type("AnyHistory", (History,), {"make_world": staticmethod(new_world)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
