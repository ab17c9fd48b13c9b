"""The command ``python -m farm_agents.worker.toolchains FAMILY...``: which compiler builds each family.

Owns: asking the code generators, as one JSON object on standard output. Does not own: who wants to know.

Invariant: a family that nothing here builds is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from farm.codegen import toolchain_of
from farm.errors import FarmError
from farm.target import Target


def toolchains(families: Iterable[str]) -> dict[str, str]:
    """Return name and version of the compiler for each family, such as ``llvm/aarch64``."""
    found = {}
    for family in families:
        try:
            found[family] = toolchain_of(Target.of_family(family))
        except FarmError as error:  # its builds will say so too
            print(f"toolchain of {family}: {error.message}", file=sys.stderr)
    return found


if __name__ == "__main__":
    print(json.dumps(toolchains(sys.argv[1:])))
