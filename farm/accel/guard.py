"""Calling what a plug-in brought, so that whatever it does is told with its name.

Owns: turning its exceptions and nonsense into errors of the farm. Does not own: time limits, which need a process
(builds, sessions and `farm.accel.asking` have one), or what is then done.

Invariant: only errors of the farm leave here, and each names the plug-in or was raised by it as such.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from farm.errors import FarmError, PlugInFailed

T = TypeVar("T")


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
            f"accelerator {who}: {hook} raised {type(error).__name__}: {str(error)[:500] or 'no message'}"
            f"{_where(error)}; report it to its author",
            plug_in=str(who),
            hook=hook,
        ) from error


def nonsense(who: object, hook: str, given: object, wanted: str) -> PlugInFailed:
    """Make the error about a hook that gave something else than it has to."""
    shown = repr(given)
    return PlugInFailed(
        f"accelerator {who}: {hook} gave nonsense ({shown[:80]}{'...' if len(shown) > 80 else ''}), not {wanted}; "
        "report it to its author",
        plug_in=str(who),
        hook=hook,
    )


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
