"""Small disks that only one process of a farm has mounted, so that nothing is left when it ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

import pytest

_MOUNT = 'mkdir -p "$0" && mount -t tmpfs -o "size=$1" tmpfs "$0" && shift && exec "$@"'


def check_can_mount():
    """Skip the test where nothing can be mounted."""
    tools = shutil.which("unshare") and shutil.which("mount")
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if os.geteuid() != 0 or not tools or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs to mount a tmpfs: run as root with CAP_SYS_ADMIN")


def small_disk(folder, size):
    """Return what goes before a command, so that it has a disk of this size at `folder`, such as ``8m``."""
    return (shutil.which("unshare"), "-m", "sh", "-c", _MOUNT, str(folder), size)


def fill(folder):
    """Leave no free block on the disk of a folder; return the file that took them."""
    path = folder / "filler"
    with path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return path
