"""Values of identity: verbs, roles, tokens.

Owns: their fields and which verbs a role has. Does not own: which method needs which verb (`matrix`).

Invariant: a token has no verb that its role lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from farm.target import Selector

if TYPE_CHECKING:
    from farm.core.tokens import TokenId


class Verb(StrEnum):
    """What a call does; each method needs one."""

    SEE = "see"
    """Look at devices, agents, leases, jobs and events."""
    BLOBS = "blobs"
    """Write to the store, and read what one knows the digest of."""
    BUILD = "build"
    RUN = "run"
    """Run functions at once or as jobs, and cancel jobs."""
    LEASE = "lease"
    """Acquire devices; a lease's own token says which lease."""
    OPERATE = "operate"
    """Take devices out of service, end other people's leases."""
    AGENT = "agent"
    """Speak for an agent."""
    ENROL = "enrol"
    """Get an agent's credential."""
    TOKENS = "tokens"
    """Make, list and revoke tokens, and set what accounts may use."""


class Role(StrEnum):
    """A set of verbs with a name."""

    USER = "user"
    AGENT = "agent"
    OPERATOR = "operator"
    ADMIN = "admin"
    ENROLMENT = "enrolment"


_USER = frozenset({Verb.SEE, Verb.BLOBS, Verb.BUILD, Verb.RUN, Verb.LEASE})

VERBS_OF_ROLE: dict[Role, frozenset[Verb]] = {
    Role.USER: _USER,
    Role.AGENT: frozenset({Verb.AGENT, Verb.BLOBS}),
    Role.OPERATOR: _USER | {Verb.OPERATE},
    Role.ADMIN: frozenset(Verb),
    Role.ENROLMENT: frozenset({Verb.ENROL}),
}


DOES: dict[Verb, str] = {
    Verb.SEE: "looking at the farm (farm devices, who, queue, jobs, events, why, wait, logs, result)",
    Verb.BLOBS: "reading and writing the store, which builds, runs and results need",
    Verb.BUILD: "building on the farm (farm build)",
    Verb.RUN: "running on a device, submitting and cancelling jobs (farm run, submit, cancel)",
    Verb.LEASE: "taking a device (farm acquire, extend, release)",
    Verb.OPERATE: "taking devices out of service and back (farm drain, resume)",
    Verb.AGENT: "speaking for an agent (farm agent)",
    Verb.ENROL: "enrolling an agent (farm agent)",
    Verb.TOKENS: "managing tokens and accounts' limits (farm token, farm account limit)",
}
"""What people do with each verb, for refusals."""


ANY_DEVICE = Selector(())


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the tracker knows it.

    Attributes
    ----------
    digest
        `farm.core.tokens.digest_of_token` of it.
    labels
        Only devices that match can be seen and used.
    account
        The only account that it can name; empty: any.
    agent_id
        The only agent that it speaks for or enrols; empty: any.
    created_at, expires_at, revoked_at, used_at
        Seconds since the Unix epoch; 0: not, or never. An enrolment token is revoked by its use.
    stored
        False for the credential of one run of the tracker, which is in memory only.
    """

    token_id: TokenId
    digest: bytes = field(repr=False)
    role: Role
    verbs: frozenset[Verb]
    labels: Selector = ANY_DEVICE
    account: str = ""
    agent_id: str = ""
    created_at: float = 0.0
    expires_at: float = 0.0
    revoked_at: float = 0.0
    used_at: float = 0.0
    stored: bool = True

    @property
    def is_limited(self) -> bool:
        """Tell whether requests have to be narrowed for it."""
        return bool(self.labels.terms or self.account)

    def ended(self, wall: float) -> bool:
        """Tell whether it expired or was revoked."""
        return bool(self.revoked_at) or bool(self.expires_at and wall >= self.expires_at)

    def name(self) -> str:
        """Return what logs call it."""
        agent = f" of {self.agent_id}" if self.agent_id else ""
        return f"{self.role} {self.token_id}{agent}"
