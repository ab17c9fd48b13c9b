"""One agent inside a Ray actor.

Owns: running `run_agent` in the actor's event loop. Does not own: the actor's life (`farm_agents.fleet.cluster`).

Invariant: the agent's processes are gone when `run` returns; if the actor is killed instead, they see it and end.
"""

from __future__ import annotations

import asyncio
import logging

from farm.core.files import private_folder
from farm.errors import Fenced


class AgentActor:
    """Runs one agent; made a Ray actor by the cluster."""

    def __init__(self, spec: str) -> None:
        from farm_agents.spec import AgentSpec

        self._spec = AgentSpec.from_json(spec)
        self._connected = False
        self._displaced = ""
        self._stop: asyncio.Event | None = None
        log = self._spec.work_dir / "logs" / "agent.log"
        private_folder(log.parent)
        logging.basicConfig(
            filename=log,
            level=logging.INFO,
            format="%(asctime)s %(levelname)s %(name)s %(message)s",
            force=True,
        )

    async def run(self) -> str:
        """Run the agent until `stop`; return why it ended.

        Raises
        ------
        FarmError
            It failed; run it again.
        """
        from farm_agents.agent import run_agent

        self._stop = asyncio.Event()
        yields = False
        while True:
            try:
                await run_agent(self._spec, self._stop, on_connected=self._note, yields=yields)
            except Fenced as error:
                # Another process speaks for this agent: starting again at once would fight it.
                self._connected, self._displaced, yields = False, error.message, True
                logging.getLogger("farm_agents").warning("%s; waiting", error.message)
            else:
                return "stopped"

    async def standing(self) -> tuple[bool, str]:
        """Tell whether the tracker has answered, and if another process has this agent's id what it was told."""
        return self._connected, self._displaced

    async def stop(self) -> None:
        """Ask the agent to end; `run` returns when it has."""
        if self._stop is not None:
            self._stop.set()

    def _note(self) -> None:
        self._connected, self._displaced = True, ""
