"""Requests narrowed to what a token allows.

Owns: joining a request's selector with the token's labels, and filling or refusing its account. Does not own: where
they stand in a request (`matrix`).

Invariant: whatever a handler makes of a narrowed request, it touches no device and no account outside the token's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farm.errors import NotAllowed
from farm.target import Selector
from farm_tracker.identity.model import Verb

if TYPE_CHECKING:
    from farm_tracker.identity.matrix import Rule
    from farm_tracker.identity.model import Token


def narrow(request: Any, rule: Rule, token: Token) -> None:  # noqa: ANN401 - any request message
    """Narrow a request in place.

    Raises
    ------
    InvalidSelector
        Its selector does not parse.
    NotAllowed
        It names another account than the token's.
    """
    if rule.selector and token.labels.terms:
        owner, name = _place(request, rule.selector)
        asked = Selector.parse(getattr(owner, name))
        # Where "all" has to be said with a selector, an empty one stays empty, and is refused by the handler.
        if asked.terms or rule.verb is not Verb.OPERATE:
            both = dict.fromkeys((*asked.terms, *token.labels.terms))
            setattr(owner, name, str(Selector(tuple(both))))
    if rule.account and token.account:
        owner, name = _place(request, rule.account)
        if getattr(owner, name) not in ("", token.account):
            raise NotAllowed(
                f"account {getattr(owner, name)[:80]}: this token is of account {token.account}; leave "
                "the account out"
            )
        setattr(owner, name, token.account)


def _place(request: Any, path: str) -> tuple[Any, str]:  # noqa: ANN401
    *outer, name = path.split(".")
    for part in outer:
        request = getattr(request, part)
    return request, name
