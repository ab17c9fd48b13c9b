"""IdentityService on the wire. Owns: its messages. Invariant: a secret is in one answer only, that which made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farm.api.v1 import identity_pb2 as pb
from farm.api.v1 import identity_pb2_grpc
from farm_tracker.identity.caller import caller
from farm_tracker.identity.matrix import RULES
from farm_tracker.service.convert import check_count
from farm_tracker.service.streams import errors_to_status

if TYPE_CHECKING:
    import grpc

    from farm_tracker.identity.identity import Identity
    from farm_tracker.identity.model import Token

    Context = grpc.aio.ServicerContext[Any, Any]

MAX_VERBS = 64


class IdentityService(identity_pb2_grpc.IdentityServiceServicer):
    """Tokens of one farm."""

    def __init__(self, identity: Identity) -> None:
        self._tokens = identity.tokens
        self._audit = identity.audit

    async def Enrol(self, request: pb.EnrolRequest, context: Context) -> pb.EnrolResponse:
        """Give an agent its own credential."""
        async with errors_to_status(context):
            text, token = await self._tokens.enrol(request.agent_id, caller())
            self._note("IdentityService/Enrol", token)
            return pb.EnrolResponse(token=text, token_id=token.token_id)
        raise AssertionError("unreachable")

    async def CreateToken(
        self, request: pb.CreateTokenRequest, context: Context
    ) -> pb.CreateTokenResponse:
        """Make a token."""
        async with errors_to_status(context):
            check_count(len(request.verbs), MAX_VERBS, "verbs")
            text, token = await self._tokens.create(
                request.role,
                verbs=tuple(request.verbs),
                labels=request.labels,
                account=request.account,
                agent_id=request.agent_id,
                expires_s=request.expires_s,
            )
            self._note("IdentityService/CreateToken", token)
            return pb.CreateTokenResponse(token=text, info=_info(token))
        raise AssertionError("unreachable")

    async def ListTokens(
        self, request: pb.ListTokensRequest, context: Context
    ) -> pb.ListTokensResponse:
        """Return all tokens."""
        return pb.ListTokensResponse(tokens=map(_info, self._tokens.tokens()))

    async def RevokeToken(
        self, request: pb.RevokeTokenRequest, context: Context
    ) -> pb.RevokeTokenResponse:
        """End a token."""
        async with errors_to_status(context):
            token = await self._tokens.revoke(request.token_id)
            self._note("IdentityService/RevokeToken", token)
            return pb.RevokeTokenResponse(info=_info(token))
        raise AssertionError("unreachable")

    def _note(self, method: str, subject: Token) -> None:
        who = caller()
        self._audit.allowed(who.name(), who.account, RULES[method].verb, method, subject.name())


def _info(token: Token) -> pb.TokenInfo:
    return pb.TokenInfo(
        token_id=token.token_id,
        role=token.role,
        verbs=sorted(token.verbs),
        labels=str(token.labels),
        account=token.account,
        agent_id=token.agent_id,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        used_at=token.used_at,
    )
