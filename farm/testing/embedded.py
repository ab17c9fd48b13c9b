"""A tracker and its agents as child processes of this one.

Owns: the order in which they start and end, how long either may take, signals meanwhile, and telling what happens.
Does not own: single processes (`farm.testing.child`), or who plays which part (`farm.testing.agents`).

Invariant: after `EmbeddedFarm.stop`, or a failed `start`, none of its processes is left and its temporary folder is
gone.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Literal

from farm.client import AgentInfo, Client, DeviceInfo
from farm.core.clock import Clock, SystemClock
from farm.errors import FarmError, InvalidInput, TrackerUnreachable
from farm.rpc.credentials import is_loopback
from farm.testing.agents import DEFAULT_AGENTS, AgentPlan
from farm.testing.child import Child
from farm.testing.folder import claim_folder
from farm.testing.keeping import KEEPING, Keeping
from farm.testing.ports import claim

Progress = Callable[[str], None]
"""Called with one line for each step."""

START_LIMIT_S = 300.0
AGENT_END_LIMIT_S = 45.0
TRACKER_END_LIMIT_S = 10.0
POLL_S = 0.05
_SETTLING = ("unchecked", "checking")


class EmbeddedFarm:
    """A whole farm that lives as long as this object is open; use it as a context manager.

    Parameters
    ----------
    agents
        ``ray``: Ray manages the agents, as the fleet file says. ``processes``: each agent is a plain process, which
        is faster to start.
    fleet
        The fleet file, for ``ray``; None: the default of the fleet.
    plans
        The agents, for ``processes``.
    data_dir
        Keeps the tracker's data, caches and logs; None: a temporary folder that is removed at the end.
    listen
        Where the tracker listens; port 0 chooses a free one.
    tls
        Whether it speaks TLS; None: only where other machines can connect, and there it must.
    keeping
        How much the tracker keeps, for how long.
    progress
        Called with one line for each step.
    start_limit_s
        How long the start may take.

    Notes
    -----
    The processes end with the thread that called `start`, at the latest. While the farm is open, SIGTERM ends this
    process through ``SystemExit``, so that the farm is stopped; this holds in the main thread only.
    """

    def __init__(
        self,
        agents: Literal["ray", "processes"] = "ray",
        *,
        fleet: Path | None = None,
        plans: Sequence[AgentPlan] = DEFAULT_AGENTS,
        data_dir: Path | None = None,
        listen: str = "127.0.0.1:0",
        tls: bool | None = None,
        keeping: Keeping = KEEPING,
        progress: Progress | None = None,
        start_limit_s: float = START_LIMIT_S,
        clock: Clock | None = None,
    ) -> None:
        if agents not in ("ray", "processes"):
            raise InvalidInput(f"farm: unknown kind of agents ({agents!r}); use ray or processes")
        self._agents = agents
        self._fleet = fleet
        self._plans = tuple(plans)
        self._data_dir = data_dir
        self._listen = listen
        self._tls = tls
        self._keeping = keeping
        self._progress = progress or (lambda line: None)
        self._start_limit_s = start_limit_s
        self._clock = clock or SystemClock()
        self._began = 0.0
        self._children: list[Child] = []
        self._temporary: Path | None = None
        self._lock: IO[bytes] | None = None
        self._signals = _Signals()
        self._address = ""
        self._serves = False
        self._state: tuple[tuple[AgentInfo, ...], tuple[DeviceInfo, ...]] = ((), ())

    @property
    def address(self) -> str:
        """Return ``host:port`` of the tracker."""
        if not self._address:
            raise InvalidInput("farm: it is not running; start it first")
        return self._address

    @property
    def agents(self) -> tuple[AgentInfo, ...]:
        """Return the agents as they were when the farm was ready."""
        return self._state[0]

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Return the devices as they were when the farm was ready."""
        return self._state[1]

    @property
    def pids(self) -> dict[str, int]:
        """Return the ids of the processes that were started, by name."""
        return {child.name: child.pid for child in self._children}

    def start(self) -> str:
        """Start everything and wait until all agents are connected and all devices checked.

        Returns
        -------
        address
            ``host:port`` of the tracker.

        Raises
        ------
        InvalidInput
            The port is taken, another farm uses the data folder, or a process refused what it was given.
        NotAllowed
            A process refused for lack of rights.
        InfrastructureError
            A process ended or did not get ready in time; the message shows the end of its log.
        """
        if self._children:
            raise InvalidInput("farm: it is running already; stop it first")
        self._began = self._clock.now()
        self._signals.install()
        try:
            self._address = claim(self._listen)
            folder = self._folder()
            deadline = self._began + self._start_limit_s
            self._start_children(folder, deadline)
            self._wait_ready(deadline)
        except BaseException:
            self.stop()
            raise
        return self._address

    def check(self) -> None:
        """Check that every process still runs.

        Raises
        ------
        InfrastructureError
            One ended; the message shows the end of its log.
        """
        for child in self._children:
            child.check_alive()

    def wait(self) -> None:
        """Wait until a signal ends this process, or a process of the farm ends; raises as `check`."""
        while True:
            self.check()
            time.sleep(4 * POLL_S)

    def stop(self) -> None:
        """End everything, the agents first; does nothing the second time.

        A signal meanwhile does not stop this: what is left is killed instead of waited for.
        """
        self._signals.hold()
        try:
            agents = self._children[1:]
            for child in agents:  # at the same time
                child.ask_to_end()
            for child in [*reversed(agents), *self._children[:1]]:
                self._end(child)
            self._children.clear()
            self._address = ""
            self._serves = False
            if self._lock is not None:
                self._lock.close()
                self._lock = None
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary = None
        finally:
            self._signals.restore()

    def __enter__(self) -> EmbeddedFarm:
        """Start; see `start`."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    # Starting

    def _folder(self) -> Path:
        if self._data_dir is None:
            # Short, since Ray keeps sockets below it and their paths are limited to 107 bytes.
            self._temporary = Path(tempfile.mkdtemp(prefix="farm-"))
        folder = (self._temporary or self._data_dir or Path()).absolute()
        self._lock = claim_folder(folder)
        return folder

    def _start_children(self, folder: Path, deadline: float) -> None:
        """Start the tracker and, at the same time, the agents: they dial until it answers.

        If it speaks TLS, agents have to know its certificate first.
        """
        logs = folder / "logs"
        self._tell(f"starting the tracker at {self._address}")
        arguments = ["--data-dir", str(folder / "tracker"), "--listen", self._address]
        speaks_tls = not is_loopback(self._address) if self._tls is None else self._tls
        if not speaks_tls:
            arguments.append("--plaintext")
        arguments += self._keeping.arguments()
        self._children.append(Child("tracker", "farm_tracker", arguments, logs))
        if speaks_tls:
            self._wait_serving(deadline)
        if self._agents == "ray":
            self._tell("starting Ray and the agents that it manages")
            arguments = ["--tracker", self._address, "--work-dir", str(folder / "agents")]
            if self._fleet is not None:
                arguments += ["--file", str(self._fleet.absolute())]
            self._children.append(Child("fleet", "farm_agents.fleet", arguments, logs))
            return
        for plan in self._plans:
            self._tell(f"starting agent {plan.agent_id}")
            arguments = ["--tracker", self._address, *plan.arguments()]
            arguments += ["--work-dir", str(folder / "agents" / plan.agent_id)]
            self._children.append(Child(f"agent-{plan.agent_id}", "farm_agents", arguments, logs))

    def _wait_serving(self, deadline: float) -> None:
        if not self._serves:
            tracker = self._children[0]
            self._until(lambda: bool(tracker.new_lines()), deadline, tracker, "is not serving")
            self._serves = True
            self._tell(f"the tracker serves at {self._address}")

    def _wait_ready(self, deadline: float) -> None:
        self._wait_serving(deadline)
        tracker, *others = self._children
        expected = {plan.agent_id for plan in self._plans}
        if self._agents == "ray":
            expected = self._wait_fleet(others[0], deadline)
        with Client(self._address) as client:
            told: set[str] = set()

            def ready() -> bool:
                return self._look(client, expected, told)

            slow = others[-1] if others else tracker
            self._until(ready, deadline, slow, "did not bring all agents and devices up")
        agents, devices = self._state
        counts = [sum(it.observed == "online" for it in them) for them in (agents, devices)]
        self._tell(f"ready: {counts[0]} agents, {counts[1]} devices")

    def _wait_fleet(self, fleet: Child, deadline: float) -> set[str]:
        """Wait until the fleet says that its agents run, and return their ids."""
        found: set[str] = set()

        def ready() -> bool:
            for event in filter(None, map(_event, fleet.new_lines())):
                if event.get("event") == "ready":
                    found.update(map(str, event.get("agents", [])))
                    return True
                self._tell(f"fleet: {_describe(event)}")
            return False

        self._until(ready, deadline, fleet, "is not ready")
        return found

    def _look(self, client: Client, expected: set[str], told: set[str]) -> bool:
        """Read the farm's state; tell whether all that is expected is there and checked."""
        try:
            agents = {agent.agent_id: agent for agent in client.agents()}
            devices = {device.device_id: device for device in client.devices()}
        except TrackerUnreachable:  # a busy machine; if it has ended, that is told by its process
            return False
        except FarmError as error:
            raise self._children[0].failure(f"does not answer ({error.message})") from error
        online = {key for key, agent in agents.items() if agent.observed == "online"}
        for agent_id in sorted((online & expected) - told):
            self._tell(f"agent {agent_id} is connected")
            told.add(agent_id)
        owned = {key for agent_id in expected & online for key in agents[agent_id].device_ids}
        here = [devices[key] for key in owned if key in devices]
        settled = [d for d in here if d.observed == "online" and d.health not in _SETTLING]
        self._state = (tuple(agents.values()), tuple(devices.values()))
        return expected <= online and len(settled) == len(owned)

    def _until(
        self, condition: Callable[[], bool], deadline: float, child: Child, late: str
    ) -> None:
        while not condition():
            self.check()
            if self._clock.now() > deadline:
                raise child.failure(f"{late} after {self._start_limit_s:.0f} s")
            time.sleep(POLL_S)

    # Ending

    def _end(self, child: Child) -> None:
        tracker = child is self._children[0]
        limit_s = TRACKER_END_LIMIT_S if tracker else AGENT_END_LIMIT_S
        by_itself = child.end(limit_s, now=self._clock.now, hurry=self._signals.hurry)
        self._tell(f"{child.name} {'ended' if by_itself else 'was killed'}")

    def _tell(self, line: str) -> None:
        self._progress(f"[{self._clock.now() - self._began:5.1f} s] {line}")


class _Signals:
    """SIGTERM as an exception while the farm runs; both signals as a hint to hurry while it stops."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._hurry = False

    def install(self) -> None:
        self._hurry = False
        if threading.current_thread() is threading.main_thread():
            self._set(signal.SIGTERM, _exit_on_signal)

    def hold(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._set(number, self._note)

    def hurry(self) -> bool:
        return self._hurry

    def restore(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            self._before.clear()

    def _set(
        self, number: signal.Signals, handler: Callable[[int, FrameType | None], None]
    ) -> None:
        before = signal.signal(number, handler)
        self._before.setdefault(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._hurry = True


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _event(line: str) -> dict[str, Any] | None:
    """Return the JSON object of a line; None for anything else that a library may print."""
    with contextlib.suppress(ValueError):
        value = json.loads(line)
        return value if isinstance(value, dict) else None
    return None


def _describe(event: dict[str, Any]) -> str:
    def words() -> Iterator[str]:
        for key, value in event.items():
            yield str(value) if key == "event" else f"{key}={value}"

    return " ".join(words())
