"""Checking an installed accelerator in a process of its own, so that one that hangs or crashes is a finding too.

Owns: that process (``python -m farm.porting.checking NAME SEED``), its time limit, reading what it tells.
Does not own: the checks (`check`).

Invariant: when `check_apart` returns or raises, the process is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict

from farm.accel.discovery import known, load
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
    command = [sys.executable, "-P", "-m", "farm.porting.checking", name, str(seed)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    late = threading.Event()

    def end() -> None:
        late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit_s, end)
    timer.start()
    said: list[bytes] = []
    assert process.stdout is not None
    assert process.stderr is not None
    errors = threading.Thread(target=lambda: said.append(process.stderr.read()), daemon=True)  # type: ignore[union-attr]
    errors.start()
    try:
        for line in process.stdout:
            finding = _finding(line)
            if finding is not None:
                findings.append(finding)
                if tell is not None:
                    tell(finding)
        code = process.wait()
    finally:
        timer.cancel()
        end()
        process.wait()
        errors.join()
        process.stdout.close()
        process.stderr.close()
    if code != 0:
        last = f"after {findings[-1].check} of {findings[-1].subject}" if findings else "at once"
        text = b"".join(said).decode(errors="replace").strip()[-400:]
        how = (
            f"did not end within {limit_s:g} s"
            if code == -signal.SIGKILL and late
            else f"ended with code {code}"
        )
        finding = Finding("process", str(who), f"{how}, {last}; {text or 'no output'}")
        findings.append(finding)
        if tell is not None:
            tell(finding)
    return Report(name, tuple(findings))


def _finding(line: bytes) -> Finding | None:
    try:
        value = json.loads(line)
        return Finding(*(str(value[name]) for name in ("check", "subject", "problem", "skipped")))
    except (ValueError, TypeError, KeyError):
        return None


def main(name: str, seed: str) -> int:
    """Check an accelerator and tell each finding as a line of JSON on what was standard output."""
    own = os.dup(1)
    os.dup2(2, 1)  # what the plug-in prints is no finding

    def tell(finding: Finding) -> None:
        os.write(own, f"{json.dumps(asdict(finding))}\n".encode())

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
