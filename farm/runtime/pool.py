"""Threads that run the parallel loops of compiled code.

Owns: a pool of native threads for one loaded module, and how many there may be. Does not own: loops (compiled code), or
how many threads a device gives a kernel (its driver).

Invariant: no thread exists that was not asked for, and none outlives `Pool.close`. Results do not depend on how many
there are. The pool's code (`pool.ll`) calls the C library alone and runs without Python's lock.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import llvmlite.binding as llvm

from farm.errors import InfrastructureError, InvalidInput
from farm.runtime.assembled import object_of

MAX_THREADS = 64
PATIENCE_NS = 2_000_000
"""How long an idle thread looks for work before it sleeps, if each thread has a core: longer than what lies between two
calls in a row, and short enough not to be seen in what a core does."""
_IMPORTS = (
    *("sem_init", "sem_wait", "sem_trywait", "sem_post", "sched_yield", "clock_gettime"),
    *("pthread_create", "pthread_join", "posix_memalign", "free"),
)
_EXPORTS = ("farm_launch", "farm_start", "farm_stop")


class Pool:
    """`threads` threads, the caller's own among them; close it.

    Parameters
    ----------
    link
        Links its code into this process.

    Raises
    ------
    InvalidInput
        Not 1 to 64 threads.
    InfrastructureError
        The system gives fewer.
    """

    def __init__(
        self, link: Callable[[llvm.JITLibraryBuilder], llvm.ResourceTracker], threads: int
    ) -> None:
        check_threads(threads)
        builder = llvm.JITLibraryBuilder()
        builder.add_object_img(object_of("pool.ll"))
        process = ctypes.CDLL(None)
        for name in _IMPORTS:
            address = ctypes.cast(getattr(process, name), ctypes.c_void_p).value or 0
            builder.import_symbol(name, address)
        for name in _EXPORTS:
            builder.export_symbol(name)
        self._library: llvm.ResourceTracker | None = link(builder)
        self.launcher: int = self._library["farm_launch"]
        """Address of the launcher, as `farm.artifact.abi` says."""
        self._stop = ctypes.CFUNCTYPE(None)(self._library["farm_stop"])
        types = (ctypes.c_int64,) * 3
        start = ctypes.CFUNCTYPE(*types)(self._library["farm_start"])
        started = start(threads, PATIENCE_NS if threads <= len(os.sched_getaffinity(0)) else 0)
        if started < threads:
            self.close()
            raise InfrastructureError(
                f"threads: the system gave {started} of {threads}; ask for fewer, or raise its limit"
            )

    def close(self) -> None:
        """End the threads; closing again does nothing."""
        if self._library is not None:
            self._stop()
            self._library.close()
            self._library = None


def check_threads(threads: int) -> None:
    """Raise InvalidInput unless a pool can have so many threads."""
    if not 1 <= threads <= MAX_THREADS:
        raise InvalidInput(f"threads: {threads}; use 1 to {MAX_THREADS}")
