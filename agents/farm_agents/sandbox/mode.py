"""What an agent's specification says about confinement.

Owns: the closed set of wishes. Does not own: what comes of them (`farm_agents.sandbox.confinement`).

Invariant: only AUTO lets the host decide.
"""

from __future__ import annotations

import enum


class Mode(enum.Enum):
    """Whether the agent's workers are to be confined.

    AUTO: where a sandbox works; where none does, without one, said aloud. REQUIRED: no work without one. NONE: never.
    """

    AUTO = "auto"
    REQUIRED = "required"
    NONE = "none"
