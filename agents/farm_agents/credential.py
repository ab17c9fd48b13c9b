"""The agent's own credential: got once, by enrolling, and kept in its work folder.

Owns: the file, enrolling, and which token the agent's calls show. Does not own: when to enrol
(`farm_agents.agent`: when the tracker does not know it).

Invariant: the file is readable by the agent's user only; what one agent got is never used for another, nor at another
tracker.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import grpc

from farm.api.v1 import identity_pb2, identity_pb2_grpc
from farm.core.files import write_atomic
from farm.errors import FarmError, NotAllowed, Unauthenticated
from farm.rpc import Credentials, aio_channel, error_from_rpc
from farm.rpc import credentials as keys

FILE = "credential.json"
ENROL_TIMEOUT_S = 10.0
MAX_FILE_BYTES = 64 << 10

_LOG = logging.getLogger("farm_agents")


class Credential:
    """What an agent shows to its tracker.

    Parameters
    ----------
    tracker
        ``host:port``.
    """

    def __init__(self, tracker: str, agent_id: str, work_dir: Path) -> None:
        self._tracker = tracker
        self._agent_id = agent_id
        self._path = work_dir / FILE
        self._token, self._ca = self._load()

    def token(self) -> str:
        """Return the token to show; empty before the first enrolment."""
        return self._token

    def channel(self) -> grpc.aio.Channel:
        """Open the channel of all the agent's calls; raises as `farm.rpc.aio_channel`."""
        known = keys.find(self._tracker)
        self._ca = known.ca or self._ca
        shown = Credentials(self._token, self._ca)
        return aio_channel(self._tracker, credentials=shown, token=self.token)

    async def enrol(self) -> bool:
        """Get a credential with what the user gave (FARM_TOKEN, or the user's own credentials for the tracker).

        Returns
        -------
        ok
            Whether it is worth trying again at once; why not is in the log.
        """
        try:
            given = Credentials(keys.token_source(self._tracker)(), self._ca)
            if not given.token:
                raise Unauthenticated(
                    f"agent {self._agent_id}: no token to enrol with; set FARM_TOKEN to one of "
                    "`farm token create --role enrolment`, or use `farm connect STRING`"
                )
            self._token = await self._exchange(given)
            self._keep()
        except (FarmError, OSError) as error:
            _LOG.warning("enrolling: %s", error)
            if not isinstance(error, NotAllowed) or isinstance(error, Unauthenticated):
                return False
            # Not a token that enrols; it may be a credential of this agent, made by hand.
            before, self._token = self._token, given.token
            return before != given.token
        _LOG.info("agent %s: enrolled at %s", self._agent_id, self._tracker)
        return True

    async def _exchange(self, given: Credentials) -> str:
        request = identity_pb2.EnrolRequest(agent_id=self._agent_id)
        async with aio_channel(self._tracker, credentials=given) as channel:
            stub: identity_pb2_grpc.IdentityServiceAsyncStub = (
                identity_pb2_grpc.IdentityServiceStub(channel)
            )
            try:
                return (await stub.Enrol(request, timeout=ENROL_TIMEOUT_S)).token
            except grpc.RpcError as error:
                raise error_from_rpc(error, self._tracker) from error

    def _keep(self) -> None:
        value = {
            "agent_id": self._agent_id,
            "tracker": self._tracker,
            "token": self._token,
            "ca": self._ca.decode(),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path, json.dumps(value, indent=2).encode())

    def _load(self) -> tuple[str, bytes]:
        """Return the token and certificate of an earlier run; nothing if there is none of use."""
        try:
            with self._path.open("rb") as file:
                value = json.loads(file.read(MAX_FILE_BYTES))
            if (value["agent_id"], value["tracker"]) == (self._agent_id, self._tracker):
                return str(value["token"]), str(value["ca"]).encode()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _LOG.warning("credential: %s is of no use (%s); enrolling again", self._path, error)
        return "", b""
