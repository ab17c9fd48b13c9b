"""The caller of the request that is being handled.

Owns: whose token it is, for handlers that have to know more than the guard checks. Does not own: the guard.

Invariant: set for every handler that the guard let through; a task that a handler starts has the same caller.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from farm.errors import NotAllowed, Unauthenticated
from farm.target import Selector

if TYPE_CHECKING:
    from farm_tracker.identity.model import Token, Verb

_CALLER: ContextVar[Token | None] = ContextVar("caller", default=None)


def set_caller(token: Token) -> None:
    """Note whose request this task handles."""
    _CALLER.set(token)


def caller() -> Token:
    """Return whose request is being handled.

    Raises
    ------
    Unauthenticated
        None is: the guard was not asked.
    """
    token = _CALLER.get()
    if token is None:
        raise Unauthenticated("caller: unknown; show a token of this farm")
    return token


def may(verb: Verb) -> bool:
    """Tell whether the caller has a verb beside the one that the method needs."""
    token = _CALLER.get()
    return token is not None and verb in token.verbs


def labels() -> Selector:
    """Return which devices the caller may see; without terms: all."""
    token = _CALLER.get()
    return Selector(()) if token is None else token.labels


def check_speaks_for(agent_id: str) -> None:
    """Check that the caller may speak for an agent; raises NotAllowed."""
    token = caller()
    if token.agent_id and token.agent_id != agent_id:
        raise NotAllowed(
            f"agent {agent_id[:80]}: this credential is of agent {token.agent_id}; enrol under the right id"
        )


def check_account(account: str) -> None:
    """Check that the caller may see and change what belongs to an account; raises NotAllowed."""
    token = caller()
    if token.account and token.account != account:
        raise NotAllowed(
            f"account {account[:80]}: this token is of account {token.account}; use one of that account"
        )
