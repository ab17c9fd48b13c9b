"""The guard before every service.

Owns: authenticating and authorising each call before its handler runs, narrowing its request to what the token
allows, ending it with its token, the audit lines. Does not own: the rules (`matrix`), the tokens (`tokens`).

Invariant: for a call that is refused no message is read and no handler runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import grpc

from farm.core.tokens import MAX_TOKEN_CHARS
from farm.errors import FarmError, NotAllowed, Unauthenticated
from farm.rpc import abort_with
from farm.rpc.authorised import SCHEME, TOKEN_KEY
from farm_tracker.identity.caller import set_caller
from farm_tracker.identity.matrix import rule_of
from farm_tracker.identity.model import DOES, VERBS_OF_ROLE
from farm_tracker.identity.narrow import narrow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from farm_tracker.identity.audit import AuditLog
    from farm_tracker.identity.matrix import Rule
    from farm_tracker.identity.model import Token
    from farm_tracker.identity.tokens import Tokens

    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]


class Guard(grpc.aio.ServerInterceptor):
    """Lets through what the tokens of a farm allow."""

    def __init__(self, tokens: Tokens, audit: AuditLog) -> None:
        self._tokens = tokens
        self._audit = audit

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 - a handler, or None for an unknown method
        """Return the handler that serves a call, or one that refuses it."""
        method = str(handler_call_details.method)
        token: Token | None = None
        try:
            token = self._tokens.authenticate(_shown(handler_call_details))
            rule = _allowed(token, method)
        except FarmError as error:
            return self._refusal(error, token, method)
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        set_caller(token)
        if rule.logged:
            self._audit.allowed(token.name(), token.account, rule.verb, method)
        return _Guarded(self._tokens, token, rule).wrap(handler)

    def _refusal(self, error: FarmError, token: Token | None, method: str) -> Handler:
        rule = rule_of(method)
        verb = rule.verb if rule else ""

        async def refuse(_requests: Any, context: Context) -> None:  # noqa: ANN401 - nothing is read
            who = token.name() if token else f"stranger at {context.peer()}"
            account = token.account if token else ""
            self._audit.refused(who, account, verb, method, error.message)
            await abort_with(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)


class _Guarded:
    """One call under one token."""

    def __init__(self, tokens: Tokens, token: Token, rule: Rule) -> None:
        self._tokens = tokens
        self._token = token
        self._rule = rule

    def wrap(self, handler: Any) -> Any:  # noqa: ANN401 - gRPC's handlers have four shapes
        """Return a handler that does the same under guard."""
        streams = "stream" if handler.request_streaming else "unary"
        kind = f"{streams}_{'stream' if handler.response_streaming else 'unary'}"
        inner = getattr(handler, kind)
        behaviour = (
            self._generator(inner) if inspect.isasyncgenfunction(inner) else self._call(inner)
        )
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(behaviour, handler.request_deserializer, handler.response_serializer)

    def _call(self, inner: Any) -> Any:  # noqa: ANN401
        async def call(request: Any, context: Context) -> Any:  # noqa: ANN401
            async with self._guarded(context):
                self._narrow(request)
                return await inner(request, context)
            raise AssertionError("unreachable")

        return call

    def _generator(self, inner: Any) -> Any:  # noqa: ANN401
        async def generate(request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: ANN401
            async with self._guarded(context):
                self._narrow(request)
                async with contextlib.aclosing(inner(request, context)) as replies:
                    async for reply in replies:
                        yield reply

        return generate

    def _narrow(self, request: Any) -> None:  # noqa: ANN401
        if self._token.is_limited and (self._rule.selector or self._rule.account):
            narrow(request, self._rule, self._token)

    @contextlib.asynccontextmanager
    async def _guarded(self, context: Context) -> AsyncIterator[None]:
        """Run a call until its token ends; what is raised by narrowing becomes its status."""
        try:
            with self._ended_by_token():
                yield
        except FarmError as error:
            await abort_with(context, error)

    @contextlib.contextmanager
    def _ended_by_token(self) -> Iterator[None]:
        task = asyncio.current_task()
        ended = False

        def end() -> None:
            nonlocal ended
            if task is not None and not ended:
                ended = True
                task.cancel()

        try:
            with self._tokens.until_ended(self._token, end):
                yield
        except asyncio.CancelledError:
            if not ended or task is None:
                raise
            task.uncancel()
            raise Unauthenticated(
                f"token {self._token.token_id}: it ended during the call; ask for another"
            ) from None


def _shown(details: grpc.HandlerCallDetails) -> str:
    """Return the token that a call shows; raises Unauthenticated if there is none."""
    for key, value in details.invocation_metadata or ():
        if key == TOKEN_KEY and isinstance(value, str):
            if not value.startswith(SCHEME) or len(value) > MAX_TOKEN_CHARS + len(SCHEME):
                raise Unauthenticated("token: malformed; show `authorization: Bearer TOKEN`")
            return value.removeprefix(SCHEME)
    raise Unauthenticated(
        "token: none was shown; set FARM_TOKEN or use `farm connect STRING` (the user who started the "
        "tracker needs neither on its machine)"
    )


def _allowed(token: Token, method: str) -> Rule:
    rule = rule_of(method)
    if rule is None:
        raise NotAllowed(
            f"method {method[:120]}: nobody may call it; use the same version at both ends"
        )
    if rule.verb not in token.verbs:
        roles = [str(role) for role, verbs in VERBS_OF_ROLE.items() if rule.verb in verbs]
        raise NotAllowed(
            f"{DOES[rule.verb]}: token {token.token_id} (role {token.role}) lacks the verb {rule.verb}; it has "
            f"{', '.join(sorted(token.verbs))}; use a token of role {' or '.join(roles)} (`farm token create`)"
        )
    return rule
