"""The tokens of one farm: making, checking, ending them.

Owns: all tokens in memory, written through to the store; what ends with a token. Does not own: verbs of methods
(`matrix`), the wire.

Invariant: a token that was ended is refused from that moment on, before the store has it; an enrolment token is
exchanged at most once. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from farm.core.tokens import RandomBytes, TokenId, digest_of_token, equal, new_token, parse_token
from farm.errors import (
    FarmError,
    InfrastructureError,
    InvalidInput,
    NotAllowed,
    NotFound,
    Unauthenticated,
)
from farm.target import Selector
from farm_tracker.identity.model import VERBS_OF_ROLE, Role, Token, Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from farm.core.clock import Clock
    from farm_tracker.identity.store import TokenStore

MAX_TOKENS = 10_000
USED_EVERY_S = 60.0
KEEP_ENDED_S = 30 * 86_400.0
ENROLMENT_S = 3600.0
MAX_EXPIRES_S = 10 * 365 * 86_400.0

_AGENT_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_ACCOUNT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._@-]{0,63})?")

log = logging.getLogger(__name__)


class Tokens:
    """All tokens of one farm.

    Parameters
    ----------
    key
        Under which digests are made; without it the store's content is worth nothing.
    """

    def __init__(
        self,
        store: TokenStore,
        key: bytes,
        clock: Clock,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._store = store
        self._key = key
        self._clock = clock
        self._random = random_bytes
        self._tokens = {token.token_id: token for token in store.load()}
        self._ends: defaultdict[TokenId, set[Callable[[], None]]] = defaultdict(set)
        self._used: set[TokenId] = set()
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Future[None]] = set()
        self._flush: asyncio.Task[None] | None = None

    # Checking

    def authenticate(self, text: str) -> Token:
        """Return the token that a text is.

        Raises
        ------
        Unauthenticated
            It is none of this farm, or it ended; the message says which, to its owner only.
        """
        try:
            parsed = parse_token(text)
        except InvalidInput as error:
            raise Unauthenticated(error.message) from None
        token = self._tokens.get(parsed.token_id)
        digest = digest_of_token(self._key, text)
        if not equal(digest, token.digest if token else bytes(len(digest))) or token is None:
            raise Unauthenticated("token: not one of this farm; ask for one, or enrol again")
        wall = self._clock.wall()
        if token.ended(wall):
            how = "revoked, or used up" if token.revoked_at else "expired"
            raise Unauthenticated(f"token {token.token_id}: {how}; ask for another")
        if wall - token.used_at >= USED_EVERY_S and token.stored:
            self._note_use(replace(token, used_at=wall))
        return token

    @contextlib.contextmanager
    def until_ended(self, token: Token, end: Callable[[], None]) -> Iterator[None]:
        """Have `end` called when the token ends while the block runs."""
        timer: asyncio.TimerHandle | None = None
        if token.expires_at:
            left_s = max(0.0, token.expires_at - self._clock.wall())
            timer = asyncio.get_running_loop().call_later(left_s, end)
        ends = self._ends[token.token_id]
        ends.add(end)
        try:
            yield
        finally:
            ends.discard(end)
            if timer is not None:
                timer.cancel()

    # Changing

    def tokens(self) -> list[Token]:
        """Return all stored tokens, oldest first."""
        return [token for token in self._tokens.values() if token.stored]

    async def create(
        self,
        role: str,
        *,
        verbs: Sequence[str] = (),
        labels: str = "",
        account: str = "",
        agent_id: str = "",
        expires_s: float = 0.0,
    ) -> tuple[str, Token]:
        """Make a token; return its text, which is not kept, and what is kept.

        Raises
        ------
        InvalidInput
            A value is malformed, a verb is not of the role, or there are too many tokens.
        InfrastructureError
            It could not be stored.
        """
        known = _role(role)
        expires_s = _expires(known, expires_s)
        if known in (Role.AGENT, Role.ENROLMENT) and agent_id:
            _check_agent_id(agent_id)
        elif known is Role.AGENT or agent_id:
            raise InvalidInput(
                f"token: agent id {agent_id[:80]!r} with role {known}; name an agent for role agent or "
                "enrolment, and only there"
            )
        if not _ACCOUNT.fullmatch(account):
            raise InvalidInput(
                f"token: malformed account ({account[:80]!r}); use letters, digits and . _ @ -, at most 64"
            )
        text, token = self._make(
            known, verbs=_verbs(known, verbs), labels=labels, account=account, agent_id=agent_id
        )
        if expires_s:
            token = replace(token, expires_at=token.created_at + expires_s)
        await self._write([token], self._make_room())
        self._tokens[token.token_id] = token
        return text, token

    def create_for_this_run(self) -> str:
        """Make an admin's token that lives in memory only, for the user whose process this is."""
        text, token = self._make(Role.ADMIN, verbs=VERBS_OF_ROLE[Role.ADMIN])
        self._tokens[token.token_id] = replace(token, stored=False)
        return text

    async def enrol(self, agent_id: str, by: Token) -> tuple[str, Token]:
        """Exchange an enrolment token for an agent's own credential.

        Raises
        ------
        InvalidInput
            The id is malformed.
        NotAllowed
            The token is for another agent, or the agent has a credential and `by` may not replace it.
        Unauthenticated
            The enrolment token was used meanwhile.
        """
        _check_agent_id(agent_id)
        if by.agent_id and by.agent_id != agent_id:
            raise NotAllowed(f"agent {agent_id}: this token enrols {by.agent_id} only")
        now = self._clock.wall()
        former = [
            token
            for token in self._tokens.values()
            if token.role is Role.AGENT and token.agent_id == agent_id and not token.ended(now)
        ]
        if former and Verb.TOKENS not in by.verbs:
            raise NotAllowed(
                f"agent {agent_id}: it has a credential already ({former[0].token_id}); have that "
                "revoked first, or choose another id"
            )
        if by.role is Role.ENROLMENT:
            known = self._tokens.get(by.token_id)
            if known is None or known.ended(now):
                raise Unauthenticated(f"token {by.token_id}: used up; ask for another")
            former.append(by)
        dropped = self._make_room()
        text, token = self._make(Role.AGENT, verbs=VERBS_OF_ROLE[Role.AGENT], agent_id=agent_id)
        ended = [replace(self._tokens[it.token_id], revoked_at=now) for it in former]
        before = [self._tokens[it.token_id] for it in former]
        self._put(ended)
        try:
            await self._write([token, *ended], dropped)
        except FarmError:
            self._put(before)
            raise
        self._tokens[token.token_id] = token
        for it in ended:
            if it.role is Role.AGENT:
                self._end(it.token_id)
        return text, token

    async def revoke(self, token_id: str) -> Token:
        """End a token, and what runs under it; one that was revoked stays so.

        Raises
        ------
        NotFound
            There is none of this id.
        InfrastructureError
            It could not be stored; it is refused all the same until the tracker restarts.
        """
        token = self._tokens.get(TokenId(token_id))
        if token is None or not token.stored:
            raise NotFound(f"token {token_id[:80]}: there is none; see `farm token list`")
        if not token.revoked_at:
            token = replace(token, revoked_at=self._clock.wall())
            self._put([token])
            self._end(token.token_id)
        await self._write([token])
        return token

    async def close(self) -> None:
        """Store what is pending and when tokens were used, and drop those that ended long ago."""
        if self._flush is not None:
            await asyncio.wait({self._flush})
        old = self._drop_ended(KEEP_ENDED_S)
        used = [self._tokens[it] for it in self._used if it in self._tokens]
        with contextlib.suppress(InfrastructureError):  # it is only when they were used
            await self._write(used, old)
        if self._writes:
            await asyncio.wait(self._writes)

    # Parts

    def _make(
        self,
        role: Role,
        *,
        verbs: frozenset[Verb],
        labels: str = "",
        account: str = "",
        agent_id: str = "",
    ) -> tuple[str, Token]:
        made = new_token(self._random)
        token = Token(
            token_id=made.token_id,
            digest=digest_of_token(self._key, made.text),
            role=role,
            verbs=verbs,
            labels=Selector.parse(labels),
            account=account,
            agent_id=agent_id,
            created_at=self._clock.wall(),
        )
        return made.text, token

    def _make_room(self) -> list[TokenId]:
        """Forget tokens that ended, so that there is room for one more; return them, to be dropped in the store.

        Raises
        ------
        InvalidInput
            There are too many that have not ended.
        """
        dropped = self._drop_ended(KEEP_ENDED_S)
        if len(self._tokens) >= MAX_TOKENS:
            dropped += self._drop_ended(0.0)
        if len(self._tokens) >= MAX_TOKENS:
            raise InvalidInput(f"token: there are {MAX_TOKENS} already; revoke some")
        return dropped

    def _drop_ended(self, before_s: float) -> list[TokenId]:
        """Forget the tokens that ended at least so long ago; nothing runs under them."""
        wall = self._clock.wall()
        old = [
            it.token_id for it in self._tokens.values() if _ended_at(it, wall) <= wall - before_s
        ]
        for token_id in old:
            del self._tokens[token_id]
            self._ends.pop(token_id, None)
            self._used.discard(token_id)
        return old

    def _put(self, tokens: Sequence[Token]) -> None:
        self._tokens.update((token.token_id, token) for token in tokens)

    def _end(self, token_id: TokenId) -> None:
        for end in list(self._ends.get(token_id, ())):
            end()

    def _note_use(self, token: Token) -> None:
        self._put([token])
        self._used.add(token.token_id)
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(self._store_uses())

    async def _store_uses(self) -> None:
        used, self._used = [self._tokens[it] for it in self._used], set()
        try:
            await self._write(used)
        except InfrastructureError as error:
            log.warning("%s", error.message)

    async def _write(self, changed: Sequence[Token], removed: Sequence[TokenId] = ()) -> None:
        if not changed and not removed:
            return
        # To its end also if the caller goes away meanwhile: the connection is for one thread at a time.
        writing = asyncio.ensure_future(self._write_in_turn(changed, removed))
        self._writes.add(writing)
        writing.add_done_callback(self._written)
        await asyncio.shield(writing)

    async def _write_in_turn(self, changed: Sequence[Token], removed: Sequence[TokenId]) -> None:
        try:
            async with self._writing:
                await asyncio.to_thread(self._store.write, changed, removed)
        except (SQLAlchemyError, OSError) as error:
            raise InfrastructureError(
                f"tokens: cannot be stored ({error}); look at the tracker's disk and try again"
            ) from error

    def _written(self, writing: asyncio.Future[None]) -> None:
        self._writes.discard(writing)
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.warning("%s", error)  # whoever asked may have gone


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise InvalidInput(
            f"token: unknown role ({text[:80]!r}); use one of {', '.join(Role)}"
        ) from None


def _verbs(role: Role, texts: Sequence[str]) -> frozenset[Verb]:
    allowed = VERBS_OF_ROLE[role]
    if not texts:
        return allowed
    unknown = sorted(set(texts) - set(allowed))
    if unknown:
        raise InvalidInput(
            f"token: role {role} has no verb {unknown[0][:80]!r}; it has {', '.join(sorted(allowed))}"
        )
    return frozenset(map(Verb, texts))


def _expires(role: Role, expires_s: float) -> float:
    if role is Role.ENROLMENT and not expires_s:
        return ENROLMENT_S
    if not 0 <= expires_s <= MAX_EXPIRES_S:
        raise InvalidInput(
            f"token: impossible end ({expires_s:g} s from now); use 0 (never) to {MAX_EXPIRES_S:g}"
        )
    return expires_s


def _check_agent_id(agent_id: str) -> None:
    if not _AGENT_ID.fullmatch(agent_id):
        raise InvalidInput(
            f"agent id: malformed ({agent_id[:80]!r}); use lower-case letters, digits, dots, dashes and "
            "underscores, at most 63"
        )


def _ended_at(token: Token, wall: float) -> float:
    """Return when a token ended; in the future if it has not."""
    if token.revoked_at:
        return token.revoked_at
    return token.expires_at or wall + 1
