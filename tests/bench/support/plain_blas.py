"""Lets numpy's OpenBLAS choose its kernels by itself.

Owns: the environment of a benchmark's process. Variables of the machine's may name a kernel that is slower here.
"""

from __future__ import annotations

import os
import sys

import threadpoolctl

_CHOICES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def ensure() -> None:
    """Start this program again without the variables that choose a kernel, if there are any."""
    if any(name in os.environ for name in _CHOICES):
        environment = {name: text for name, text in os.environ.items() if name not in _CHOICES}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def name() -> str:
    """Return version and kernel of numpy's BLAS."""
    found = [info for info in threadpoolctl.threadpool_info() if info["user_api"] == "blas"]
    return f"OpenBLAS {found[0]['version']} ({found[0]['architecture']})" if found else "numpy"
