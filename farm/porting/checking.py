"""Checking an installed accelerator in a process of its own, so that one that hangs or crashes is a finding too.

Owns: that process (``python -m farm.porting.checking NAME SEED``), its time limit, reading what it tells.
Does not own: the checks (`check`).

Invariant: when `check_apart` returns or raises, the process is gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from farm.accel.discovery import known, load
from farm.core.apart import answers, run_apart
from farm.errors import FarmError
from farm.porting.check import check_accelerator
from farm.porting.findings import Finding, Report

LIMIT_S = 600.0


def check_apart(
    name: str,
    seed: int = 0,
    limit_s: float = LIMIT_S,
    tell: Callable[[Finding], None] | None = None,
) -> Report:
    """Check an installed accelerator; whatever it does is a finding.

    Parameters
    ----------
    limit_s
        How long all of it may take.
    tell
        Called with each finding as it is made.

    Raises
    ------
    InvalidTarget
        It is not installed, or cannot be used.
    """
    who = known(name)
    findings: list[Finding] = []

    def note(finding: Finding | None) -> None:
        if finding is not None:
            findings.append(finding)
            if tell is not None:
                tell(finding)

    ended = run_apart(
        "farm.porting.checking",
        [name, str(seed)],
        limit_s=limit_s,
        tell=lambda answer: note(_finding(answer)),
    )
    if ended.status != 0:
        last = (
            f"after {findings[-1].check} of {findings[-1].subject}"
            if findings
            else "before any check"
        )
        how = f"did not end within {limit_s:g} s"
        if ended.status is not None:
            how = f"ended with {ended.how}"
        said = ended.said[-400:] or "no output"
        note(Finding("process", str(who), f"{how}, {last}; {said}"))
    return Report(name, tuple(findings))


def _finding(value: dict[str, Any]) -> Finding | None:
    try:
        return Finding(*(str(value[name]) for name in ("check", "subject", "problem", "skipped")))
    except KeyError:
        return None


def main(name: str, seed: str) -> int:
    """Check an accelerator and tell each finding as a line of JSON on what was standard output."""
    answer = answers()

    def tell(finding: Finding) -> None:
        answer(asdict(finding))

    try:
        accelerator = load(name).accelerator
    except FarmError as error:
        tell(Finding("object", name, error.message))
        return 0
    check_accelerator(accelerator, seed=int(seed), tell=tell)
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:3])
    sys.stderr.flush()
    os._exit(code)  # whatever threads the plug-in left
