"""The command ``python -m farm_agents.worker.toolchains FAMILY...``: which compiler builds each family.

Owns: asking the code generators, as one JSON object on standard output. Does not own: who wants to know.

Invariant: a family that can be built has a name; one that no compiler knows has null; one that cannot be built now is
left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from farm.codegen import compile_function, toolchain_of
from farm.errors import FarmError, InvalidTarget
from farm.target import Target
from farm_agents.worker.small import small_function


def toolchains(families: Iterable[str]) -> dict[str, str | None]:
    """Return name and version of the compiler for each family, such as ``llvm/aarch64``."""
    found: dict[str, str | None] = {}
    for family in families:
        try:
            target = Target.of_family(family)
            if not target.is_plug_in:  # whose code runs nowhere but where it is given work
                compile_function(small_function(), "device", target)  # the only question that tells
            found[family] = toolchain_of(target)
        except InvalidTarget as error:
            print(f"toolchain of {family}: {error.message}", file=sys.stderr)
            found[family] = None
        except FarmError as error:  # its builds will say so too
            print(f"toolchain of {family}: {error.message}", file=sys.stderr)
    return found


if __name__ == "__main__":
    print(json.dumps(toolchains(sys.argv[1:])))
