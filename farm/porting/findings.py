"""What checks of an accelerator found.

Owns: the values, and how they read. Does not own: any check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of one subject.

    Attributes
    ----------
    check
        Name of the check, such as ``results``.
    subject
        What was looked at, such as ``dense 7x9x13 on tile8``.
    problem
        What is wrong; empty: nothing.
    skipped
        Why it could not be made; empty: it was.
    """

    check: str
    subject: str
    problem: str = ""
    skipped: str = ""

    def __str__(self) -> str:
        """Return one line."""
        state = "FAILED" if self.problem else "skipped" if self.skipped else "ok"
        said = self.problem or self.skipped
        return f"{state:7} {self.check}: {self.subject}{f': {said}' if said else ''}"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was checked."""

    accelerator: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The checks that found something wrong."""
        return tuple(it for it in self.findings if it.problem)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong, and something was checked."""
        return not self.failed and any(not it.skipped for it in self.findings)

    def counts(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield for each check how often it passed, failed and was skipped, in the order of the first of each."""
        for check in dict.fromkeys(it.check for it in self.findings):
            own = [it for it in self.findings if it.check == check]
            failed = sum(bool(it.problem) for it in own)
            skipped = sum(bool(it.skipped) for it in own)
            yield check, len(own) - failed - skipped, failed, skipped
