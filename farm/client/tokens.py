"""Tokens, as administrators of a farm use them.

Owns: those calls and what they return. Does not own: what a token allows (the tracker), or this user's own
credentials (`farm.rpc.credentials`).

Invariant: a secret is in the answer to `create_token` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from farm.api.v1 import identity_pb2, identity_pb2_grpc
from farm.client.calls import Calls
from farm.rpc import rpc_errors

CALL_S = 10.0


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token without its secret.

    Attributes
    ----------
    labels
        Selector: only devices that match can be seen and used; empty: all.
    account, agent_id
        The only one that it can name, or speaks for; empty: any.
    created_at, expires_at, revoked_at, used_at
        Seconds since the Unix epoch; None: not, or never. `used_at` is exact to a minute.
    """

    token_id: str
    role: str
    verbs: tuple[str, ...]
    labels: str
    account: str
    agent_id: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    used_at: float | None

    @staticmethod
    def from_proto(info: identity_pb2.TokenInfo) -> TokenInfo:
        """Return what a message says."""
        return TokenInfo(
            token_id=info.token_id,
            role=info.role,
            verbs=tuple(info.verbs),
            labels=info.labels,
            account=info.account,
            agent_id=info.agent_id,
            created_at=info.created_at,
            expires_at=info.expires_at or None,
            revoked_at=info.revoked_at or None,
            used_at=info.used_at or None,
        )


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was made just now, with its secret: nobody can ask for that again."""

    token: str = field(repr=False)
    info: TokenInfo


class TokenCalls(Calls):
    """The part of a client that administrators use."""

    @cached_property
    def _identity_stub(self) -> identity_pb2_grpc.IdentityServiceStub:
        return identity_pb2_grpc.IdentityServiceStub(self._channel)

    def create_token(
        self,
        role: str = "user",
        *,
        verbs: Sequence[str] = (),
        labels: str = "",
        account: str = "",
        agent_id: str = "",
        expires_s: float = 0.0,
    ) -> NewToken:
        """Make a token.

        Parameters
        ----------
        role
            ``user``, ``operator``, ``admin``; ``enrolment``: an agent exchanges it for its own credential, once;
            ``agent``: such a credential made by hand.
        verbs
            Some of the role's; empty: all.
        labels, account, agent_id
            Limits: see `TokenInfo`.
        expires_s
            Seconds until it ends; 0: never, but an hour for enrolment.

        Raises
        ------
        InvalidInput
            A value is malformed, or a verb is not the role's.
        NotAllowed
            You may not make tokens.
        """
        request = identity_pb2.CreateTokenRequest(
            role=role,
            verbs=verbs,
            labels=labels,
            account=account,
            agent_id=agent_id,
            expires_s=expires_s,
        )
        with rpc_errors(self.address):  # never repeated: a second try would make a second token
            made = self._identity_stub.CreateToken(request, timeout=CALL_S)
        return NewToken(made.token, TokenInfo.from_proto(made.info))

    def tokens(self) -> list[TokenInfo]:
        """Return all tokens, oldest first, also those that ended less than a month ago."""
        request = identity_pb2.ListTokensRequest()
        with rpc_errors(self.address):
            answer = self._identity_stub.ListTokens(request, timeout=CALL_S)
        return [TokenInfo.from_proto(info) for info in answer.tokens]

    def revoke_token(self, token_id: str) -> TokenInfo:
        """End a token for good, and what runs under it; one that was revoked stays so.

        Raises
        ------
        NotFound
            There is none of this id.
        """
        request = identity_pb2.RevokeTokenRequest(token_id=token_id)
        with rpc_errors(self.address):
            answer = self._identity_stub.RevokeToken(request, timeout=CALL_S)
        return TokenInfo.from_proto(answer.info)
