"""Where an agent can be told to kill itself, so that tests show what survives (``FARM_AGENT_CRASH=NAME:N``).

Owns: the names. Does not own: how (`farm.core.crash`).

Invariant: there is one for each phase of a run attempt: its beginning, before anything is done in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from farm.core.crash import CrashPoints
from farm.core.ids import AttemptId
from farm_agents.state.run import Run

VARIABLE = "FARM_AGENT_CRASH"

POINTS = CrashPoints(
    VARIABLE,
    {
        "run.waiting": "an attempt is known; its device is not ready",
        "run.fetching": "its device is ready; nothing is fetched, and the outbox does not know of it",
        "run.loading": "what it needs is in the cache; its artifact is not loaded",
        "run.running": "its artifact is loaded; the kernel was not called",
        "run.ending": "the kernel returned; its worker has not ended, its outcome is in memory only",
        "run.storing": "its outcome is in the outbox; the store may lack its blobs",
        "run.killing": "it has to be killed; it was not",
        "run.finished": "its outcome is in the outbox and its blobs in the store; the tracker was not told",
    },
)


def pass_phases(before: Mapping[AttemptId, Run], after: Mapping[AttemptId, Run]) -> None:
    """Pass the point of each phase that an attempt has entered."""
    if not POINTS.is_armed:  # nearly always, and after each event
        return
    for attempt_id, run in after.items():
        former = before.get(attempt_id)
        if former is None or former.phase is not run.phase:
            POINTS.passed(f"run.{run.phase.value.lower()}")
