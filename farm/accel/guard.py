"""Calling what a plug-in brought, so that whatever it does is told with its name.

Owns: turning its exceptions and nonsense into errors of the farm, also those of a process that calls it. Does not own:
that process (`farm.core.apart`, builds, sessions), without which there is no time limit, or what is then done.

Invariant: only errors of the farm leave here, and each names the plug-in or was raised by it as such.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from farm.core.apart import Ended
from farm.errors import FarmError, PlugInFailed, error_class

T = TypeVar("T")
SHOWN = 80


def call(who: object, hook: str, function: Callable[..., T], *arguments: object) -> T:
    """Call one hook.

    Parameters
    ----------
    who
        The plug-in, as messages name it.

    Raises
    ------
    PlugInFailed
        It raised anything that is none of the farm's errors.
    """
    try:
        return function(*arguments)
    except FarmError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        raise PlugInFailed(
            f"accelerator {who}: {hook} raised {type(error).__name__}: {said(error) or 'no message'}"
            f"{_where(error)}; report it to its author",
            plug_in=str(who),
            hook=hook,
        ) from error


def nonsense(who: object, hook: str, given: object, wanted: str) -> PlugInFailed:
    """Make the error about a hook that gave something else than it has to."""
    try:
        shown = repr(given)
    except Exception:  # noqa: BLE001 - others' code
        shown = f"{type(given).__name__}, whose text raises"
    return PlugInFailed(
        f"accelerator {who}: {hook} gave nonsense ({shown[:SHOWN]}{'...' if len(shown) > SHOWN else ''}), not "
        f"{wanted}; report it to its author",
        plug_in=str(who),
        hook=hook,
    )


def said(error: BaseException) -> str:
    """Return an error of others' code as text; its own text may raise, too."""
    try:
        return (error.message if isinstance(error, FarmError) else str(error))[:500]
    except Exception:  # noqa: BLE001 - others' code
        return "(its text raises)"


def told(who: object, ended: Ended, limit_s: float) -> object:
    """Return what a process that calls a plug-in answered: ``{"answer": ...}``, or ``{"error": ..., "code": ...}``.

    Raises
    ------
    PlugInFailed
        It said nothing within its limit, or ended without an answer.
    FarmError
        That it answered with.
    """
    match ended.answer:
        case {"error": str(message), "code": str(code)}:
            raise error_class(code)(message, plug_in=str(who))
        case {"answer": value} if ended.status is not None:
            return value
    how = f"ended its process (code {ended.status}; {ended.said[-300:] or 'no output'})"
    if ended.status is None:
        how = f"does not answer (nothing after {limit_s:g} s)"
    raise PlugInFailed(f"accelerator {who}: {how}; report it to its author", plug_in=str(who))


def text(who: object, hook: str, given: object) -> str:
    """Return what a hook said as text: None is empty, anything but text is nonsense."""
    if given is None:
        return ""
    if not isinstance(given, str):
        raise nonsense(who, hook, given, "a reason as text, empty for none")
    return given[:2000]


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if len(frames) < 2:
        return ""
    last = frames[-1]
    return f" at {last.filename.rpartition('/')[2]}:{last.lineno}"
