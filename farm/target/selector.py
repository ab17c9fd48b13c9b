"""Device selectors: which devices may serve a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from farm.errors import InvalidSelector

_TERM = re.compile(
    r"(?P<key>[a-z][a-z0-9._/-]{0,62})(?:(?P<op>!=|=)(?P<value>[^,=!\ud800-\udfff]{0,128}))?"
)
MAX_TERMS = 32


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: ``key=value``, ``key!=value``, or ``key`` (has the label at all, value None)."""

    key: str
    value: str | None
    negated: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether labels fulfil this term; an absent label fulfils ``!=``."""
        if self.value is None:
            return self.key in labels
        return (labels.get(self.key) == self.value) != self.negated

    def __str__(self) -> str:
        """Return the term as it is written."""
        if self.value is None:
            return self.key
        return f"{self.key}{'!=' if self.negated else '='}{self.value}"


@dataclass(frozen=True, slots=True)
class Selector:
    """A conjunction of terms over a device's labels; the empty selector matches every device."""

    terms: tuple[Term, ...]

    @staticmethod
    def parse(text: str) -> Selector:
        """Parse ``key=value,key!=value,key``.

        Raises
        ------
        InvalidSelector
            A term is malformed, or there are more than 32.
        """
        terms = []
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            match = _TERM.fullmatch(part)
            if not match:
                raise InvalidSelector(
                    f"selector: malformed term ({part[:80]!r}); use key=value, key!=value or key"
                )
            terms.append(Term(match["key"], match["value"], match["op"] == "!="))
        if len(terms) > MAX_TERMS:
            raise InvalidSelector(
                f"selector: too many terms ({len(terms)}); use at most {MAX_TERMS}"
            )
        return Selector(tuple(terms))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a device with these labels fulfils every term."""
        return all(term.matches(labels) for term in self.terms)

    def unmatched(self, labels: Mapping[str, str]) -> tuple[Term, ...]:
        """Return the terms that a device with these labels does not fulfil."""
        return tuple(term for term in self.terms if not term.matches(labels))

    def __str__(self) -> str:
        """Return the selector as it is written."""
        return ",".join(map(str, self.terms))
