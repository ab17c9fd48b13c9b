"""Calling what others wrote: it may raise, never return, or return nonsense.

Owns: the time limit, and turning whatever happens into one error. Does not own: what is called.

Invariant: `Guard.call` returns within its limit (and a moment), whatever is called, as long as that runs Python now and
then; after a limit was passed the same backend is not called again.

Notes
-----
A call runs in a thread of its own. At the limit an exception is raised in that thread, which ends loops in Python. A
thread that does not end even so is left behind; it keeps no process alive.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from farm.accel.guard import said

T = TypeVar("T")

DEFAULT_LIMIT_S = 60.0
_GRACE_S = 1.0


class BackendMisbehavedError(Exception):
    """A backend raised, took too long or returned nonsense; the text names it and says what."""


class _Stop(BaseException):
    """Raised in a thread that ran too long."""


class Guard:
    """Calls one backend.

    Parameters
    ----------
    name
        The backend's, for messages.
    limit_s
        Of each call.
    """

    def __init__(self, name: str, limit_s: float = DEFAULT_LIMIT_S) -> None:
        self.name = name
        self.limit_s = limit_s
        self.stopped = ""

    def call(self, what: str, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a call gives.

        Raises
        ------
        BackendMisbehavedError
            It raised or took too long, or an earlier call did not end.
        """
        if self.stopped:
            raise BackendMisbehavedError(f"backend {self.name} is not asked again: {self.stopped}")
        call = _Call(function, arguments)
        if not call.finished(self.limit_s):
            self.stopped = f"its {what} took longer than {self.limit_s:g} s"
            raise BackendMisbehavedError(f"backend {self.name}: {self.stopped}")
        if call.error is not None:
            raise self._raised(what, call.error) from call.error
        return call.result  # type: ignore[no-any-return]

    def here(self, what: str, function: Callable[..., T], *arguments: Any) -> T:
        """Call what is the farm's own, on values of the backend's: without a thread, so without a time limit.

        Raises
        ------
        BackendMisbehavedError
            The values made it raise.
        """
        try:
            return function(*arguments)
        except Exception as error:
            raise self._raised(what, error) from error

    def _raised(self, what: str, error: BaseException) -> BackendMisbehavedError:
        return BackendMisbehavedError(
            f"backend {self.name}: its {what} raised {type(error).__name__}: {said(error)}"
        )


class _Call:
    """One call in its thread."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._function, self._arguments = function, arguments
        self._lock = threading.Lock()
        self._done = False
        self._thread = threading.Thread(target=self._run, name="backend", daemon=True)
        self._thread.start()

    def finished(self, limit_s: float) -> bool:
        """Wait for the end; tell whether it came in time. Afterwards the call changes nothing here."""
        self._thread.join(limit_s)
        with self._lock:
            if self._done:
                return True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(_Stop)
            )
        self._thread.join(_GRACE_S)
        return False

    def _run(self) -> None:
        try:
            result, error = None, None
            try:
                result = self._function(*self._arguments)
            except _Stop:
                raise
            except BaseException as caught:  # noqa: BLE001 - whatever others raise, exits included
                error = caught
            with self._lock:
                self.result, self.error, self._done = result, error, True
        except _Stop:
            return
