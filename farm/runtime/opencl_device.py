"""The command ``python -m farm.runtime.opencl_device [PLATFORM.DEVICE]``: what an OpenCL device is, as JSON.

Owns: that command. It is a process of its own because opening a platform starts threads, which no process that forks
workers may have.

Invariant: prints one JSON object, ``{"error": text}`` if there is no such device.
"""

from __future__ import annotations

import json
import sys

from farm.errors import FarmError


def main(name: str) -> dict[str, object]:
    """Return what the device is, or why there is none."""
    try:
        from farm.runtime.opencl import describe

        return describe(name)
    except ImportError as error:
        return {"error": f"opencl: {error}; install kernel-farm[opencl]"}
    except FarmError as error:
        return {"error": error.message}


if __name__ == "__main__":
    print(json.dumps(main("".join(sys.argv[1:2]))))
