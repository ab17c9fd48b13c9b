"""Agents as detached Ray actors: started, placed by their resources, restarted, ended.

Owns: Ray's start and end, the actors. Does not own: which agents (`farm_agents.fleet.fleet`) or what an agent does.

Invariant: Ray serves on loopback only; after `stop` or `abandon` no process of it is left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.errors import InfrastructureError
from farm_agents.backoff import Backoff
from farm_agents.fleet.actor import AgentActor
from farm_agents.fleet.fleet import Fleet, Member
from farm_agents.sandbox.cgroups import remove_stale_groups
from farm_agents.worker import processes

NAMESPACE = "kernel-farm"
SLOT = "farm_agent"
"""Resource that every agent takes one of, so that Ray spreads them by its count."""
OBJECT_STORE_BYTES = 80 << 20
"""Nearly the least that Ray accepts: nothing of the farm travels through it."""
MAX_PRESTARTED = 8
STOP_LIMIT_S = 25.0
KILL_LIMIT_S = 10.0
POLL_S = 0.05

_LOG = logging.getLogger("farm_agents.fleet")


@dataclass(slots=True)
class Seat:
    """One member of the fleet and the actor that plays it."""

    member: Member
    spec: str
    actor: Any
    running: Any = None
    asking: Any = None
    begun: bool = False
    connected: bool = False
    displaced: str = ""
    ended: str = ""
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.5, ceiling_s=30.0))
    retry_at: float | None = None


class Cluster:
    """Ray of this host with the agents of one fleet. Make one with `Cluster.start`."""

    def __init__(self, ray: Any, folder: Path) -> None:  # noqa: ANN401 - ray is loaded late
        self._ray = ray
        self._folder = folder
        self._seats: list[Seat] = []

    @staticmethod
    def start(fleet: Fleet, tracker: str, work_dir: Path, folder: Path) -> Cluster:
        """Start Ray and an actor for each agent of the fleet.

        Parameters
        ----------
        folder
            Gets Ray's files and is removed at the end; of `make_folder`.

        Raises
        ------
        InfrastructureError
            Ray is not installed or does not start.
        """
        processes.adopt_orphans()  # whatever Ray starts stays below this process until it is gone
        _configure(os.environ)
        try:
            import ray
        except ImportError as error:
            raise InfrastructureError(
                f"fleet: ray is not installed ({error}); install kernel-farm[cluster]"
            ) from error
        cluster = Cluster(ray, folder)
        try:
            cluster._start_ray(fleet)
            cluster._start_actors(fleet, tracker, work_dir)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def agents(self) -> list[str]:
        """The ids of the agents, in the order of the fleet."""
        return [seat.member.agent_id for seat in self._seats]

    @property
    def all_connected(self) -> bool:
        """Whether each agent has been heard by the tracker, or another process has its id."""
        return all(seat.connected or seat.displaced or seat.ended for seat in self._seats)

    def tend(self) -> Iterator[dict[str, str]]:
        """Look after the agents once: restart what died; yield what happened, for the log."""
        now = time.monotonic()
        for seat in self._seats:
            if seat.running is not None:
                done, _ = self._ray.wait([seat.running], timeout=0)
                if done:
                    yield self._ended(seat, now)
            elif seat.retry_at is not None and now >= seat.retry_at:
                seat.retry_at = None
                self._run(seat)
        yield from self._ask_standing()

    def stop(self) -> None:
        """End the agents, the actors and Ray; return when every process of them is gone."""
        with contextlib.suppress(Exception):  # Ray may be dead: the processes below are what counts
            self._stop_actors()
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        _end_descendants(KILL_LIMIT_S / 2)
        remove_stale_groups()  # of agents that were killed
        shutil.rmtree(self._folder, ignore_errors=True)

    @staticmethod
    def abandon(folder: Path) -> None:
        """Kill all that `start` has started so far, in whatever thread; nobody may use Ray in this process any more."""
        subprocess.Popen.__init__ = _refuse  # type: ignore[method-assign]
        _end_descendants(0.0)
        remove_stale_groups()
        shutil.rmtree(folder, ignore_errors=True)

    def _start_ray(self, fleet: Fleet) -> None:
        resources: dict[str, float] = {SLOT: float(len(fleet.members))}
        for member in fleet.members:
            for name, amount in member.resources:
                resources[name] = resources.get(name, 0.0) + amount
        try:
            with _only_needed_services():
                self._ray.init(
                    address="local",
                    namespace=NAMESPACE,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    # Ray starts that many processes ahead, so that actors find them running.
                    num_cpus=min(len(fleet.members), MAX_PRESTARTED),
                    num_gpus=0,
                    object_store_memory=OBJECT_STORE_BYTES,
                    resources=resources,
                    # Ray lets every user write to its folder, so it has one inside ours.
                    _temp_dir=str(self._folder / "r"),
                    _node_ip_address="127.0.0.1",
                )
        except Exception as error:  # Ray raises whatever its parts raise
            raise InfrastructureError(
                f"fleet: Ray does not start ({type(error).__name__}: {error}); run `farm agent` "
                "instead, or look at the message"
            ) from error

    def _start_actors(self, fleet: Fleet, tracker: str, work_dir: Path) -> None:
        for member in fleet.members:
            spec = member.spec(tracker, work_dir).to_json()
            seat = Seat(member, spec, self._actor(member, spec))
            self._seats.append(seat)
            self._run(seat)

    def _actor(self, member: Member, spec: str) -> Any:  # noqa: ANN401 - an actor handle
        remote = self._ray.remote(AgentActor)
        options = remote.options(
            name=member.agent_id,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=8,
            num_cpus=0,
            resources={SLOT: 1.0, **dict(member.resources)},
        )
        return options.remote(spec)

    def _run(self, seat: Seat) -> None:
        seat.running = seat.actor.run.remote()
        seat.asking = None

    def _ended(self, seat: Seat, now: float) -> dict[str, str]:
        running, seat.running, seat.connected = seat.running, None, False
        try:
            seat.ended = self._ray.get(running)
        except Exception as error:  # noqa: BLE001 - whatever killed it; it is told and mended
            cause = str(error).strip().splitlines() or [type(error).__name__]
            if isinstance(error, self._ray.exceptions.ActorDiedError):
                self._replace(seat)
            seat.retry_at = now + seat.backoff.next_s()
            return {"event": "restarting", "agent": seat.member.agent_id, "cause": cause[-1]}
        return {"event": "ended", "agent": seat.member.agent_id, "cause": seat.ended}

    def _replace(self, seat: Seat) -> None:
        # Ray restarts an actor whose process died by itself; then the name is still taken.
        with contextlib.suppress(ValueError):
            seat.actor = self._actor(seat.member, seat.spec)

    def _ask_standing(self) -> Iterator[dict[str, str]]:
        for seat in self._seats:
            if seat.running is None:
                continue
            if seat.asking is None:
                seat.asking = seat.actor.standing.remote()
            done, _ = self._ray.wait([seat.asking], timeout=0)
            if not done:
                continue
            asking, seat.asking = seat.asking, None
            before = seat.connected, seat.displaced
            with contextlib.suppress(Exception):  # it died, which `run` tells
                seat.connected, seat.displaced = self._ray.get(asking)
                seat.begun = True
            if before == (seat.connected, seat.displaced):
                continue
            agent = seat.member.agent_id
            if seat.connected:
                seat.backoff.reset()
                yield {"event": "connected", "agent": agent}
            elif seat.displaced:
                yield {"event": "displaced", "agent": agent, "cause": seat.displaced}

    def _stop_actors(self) -> None:
        # An actor that never answered may take long to start, and has nothing to put in order.
        begun = [seat for seat in self._seats if seat.begun]
        running = [seat.running for seat in begun if seat.running is not None]
        for seat in begun:
            seat.actor.stop.remote()
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=STOP_LIMIT_S)
        for seat in self._seats:
            self._ray.kill(seat.actor)


def _configure(environment: Any) -> None:  # noqa: ANN401 - os.environ
    """Set what Ray reads from the environment, before it is imported."""
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    environment["RAY_DISABLE_IMPORT_WARNING"] = "1"
    # Ray puts the host's own address in the place of 127.0.0.1 and then serves all networks. Told that clusters are
    # not supported here, as it is elsewhere by default, it stays on loopback.
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    environment.pop("RAY_ADDRESS", None)  # never join a cluster that somebody else runs here
    # A token of this cluster alone; else Ray writes one into the home folder, readable by all.
    environment["RAY_AUTH_MODE"] = "token"
    environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextlib.contextmanager
def _only_needed_services() -> Iterator[None]:
    """Keep Ray from starting its API server, autoscaler and log collector, which nothing here uses.

    Notes
    -----
    There is no public option for it. Measured on two busy cores: the start takes 5 s instead of 13 s. Where a
    release of Ray names these methods otherwise, they are left alone and the start is only slower.
    """
    from ray._private.node import Node

    names = [
        n for n in ("start_api_server", "start_monitor", "start_log_monitor") if hasattr(Node, n)
    ]
    before = {name: getattr(Node, name) for name in names}
    for name in names:
        setattr(Node, name, lambda self, *args, **kwargs: None)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Node, name, method)


def make_folder() -> Path:
    """Make a folder for Ray: paths of sockets are limited to 107 bytes, so that its name has to be short."""
    where = "/tmp" if os.access("/tmp", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="kf-", dir=where))


def _refuse(*_: object, **__: object) -> None:
    raise OSError("this process is ending")


def _end_descendants(wait_s: float) -> None:
    """Wait for what is below this process to end, and kill what has not after a while."""
    me = os.getpid()
    deadline = time.monotonic() + wait_s
    while left := processes.descendants_of(me):
        if time.monotonic() > deadline:
            processes.kill(left)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > deadline + KILL_LIMIT_S:
            raise InfrastructureError(f"fleet: processes cannot be killed ({left}); look at them")
        time.sleep(POLL_S)
