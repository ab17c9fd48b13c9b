"""Run a command that ends when the process which started it ends, however that happens.

Owns: the death signal of one process. Run as a file, ``python tether.py PARENT_PID COMMAND...``; it becomes COMMAND.
Does not own: the processes that COMMAND starts; it gets SIGTERM and ends them itself.

Invariant: imports nothing but the standard library, so that it costs a few milliseconds.

Notes
-----
The death signal survives ``exec`` (prctl(2)). It is bound to the *thread* that started the command: that thread must
live as long as the command is to.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for SIGTERM at the parent's death, then become the command."""
    parent_pid, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent_pid):  # it died before the signal was asked for
        raise SystemExit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
