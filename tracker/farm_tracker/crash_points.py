"""Where a tracker can be told to kill itself, so that tests show what survives (``FARM_TRACKER_CRASH=NAME:N``).

Owns: the names. Does not own: how (`farm.core.crash`).

Invariant: between any two of them in a row lies at most one step that the outside or the disk can see.
"""

from __future__ import annotations

from farm.core.crash import CrashPoints

VARIABLE = "FARM_TRACKER_CRASH"

POINTS = CrashPoints(
    VARIABLE,
    {
        "start.loaded": "what a former run left is loaded; nobody is served yet",
        "blob.received": "all bytes of a blob are in a temporary file; it has no name",
        "blob.named": "a blob has its name; its sender was not answered",
        "commit.begun": "a transaction is open; none of its rows is written",
        "commit.written": "all rows of a transaction are written; it is not committed",
        "commit.done": "a transaction is on disk; none of its commands is carried out",
        "job.accepted": "a submit is on disk; its client was not answered",
        "lease.granted": "a grant and its epoch are on disk; neither client nor agent knows",
        "agent.pushed": "what an agent should do is on disk; it was not told",
        "result.arrived": "the result of a run has arrived; nothing of it is on disk",
        "result.recorded": "the end of a job is on disk; nobody was told",
        "unit.told": "what became of a build's unit is on disk; its client was not told",
        "merge.begun": "all modules of a build are in the store; they are not merged",
        "merge.stored": "the artifact is in the store; the build does not have it",
    },
)
