"""The one tree of errors that Kernel Farm raises.

Owns: each kind of error, its stable code, whether a retry can help, its gRPC status and its exit code.
Does not own: how an error crosses the wire (`farm.rpc.status`) or how it is shown (`farm.cli`).

Invariant: codes are unique and never change meaning; a message has the form
"subject: what is wrong (value); what to do".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar


class FarmError(Exception):
    """Base of every error of the farm; catch it to catch them all.

    Parameters
    ----------
    message
        "subject: what is wrong (value); what to do".
    details
        Facts for programs: short string keys, string values. They cross the wire with the error.
    """

    code: ClassVar[str] = "FARM_ERROR"
    retryable: ClassVar[bool] = False
    status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 6

    def __init__(self, message: str, **details: str) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidInput(FarmError):
    """What you passed is not acceptable; change it, a retry cannot help."""

    code = "INVALID_INPUT"
    status = "INVALID_ARGUMENT"
    exit_code = 2


class InvalidTarget(InvalidInput):
    """The target text does not parse or names something unknown; the message lists what is known."""

    code = "INVALID_TARGET"


class InvalidFunction(InvalidInput):
    """A function breaks a rule of the IR; the message names the place and the rule."""

    code = "INVALID_FUNCTION"


class InvalidGraph(InvalidInput):
    """A graph, or a document of one, breaks a rule; the message names the node or value, and the rule."""

    code = "INVALID_GRAPH"


class ScheduleError(InvalidInput):
    """A schedule's step is impossible or would change results; the message names it, the place and the reason."""

    code = "SCHEDULE_REFUSED"


class UnsupportedFunction(InvalidInput):
    """A valid function that this target's code generator cannot compile; place it elsewhere."""

    code = "UNSUPPORTED_FUNCTION"


class PlacementConflict(InvalidInput):
    """A function's own target differs from the one it was listed under; drop one of the two."""

    code = "PLACEMENT_CONFLICT"


class DuplicateSymbol(InvalidInput):
    """Two functions share a public name; rename one, or build with ``variants=True``."""

    code = "DUPLICATE_SYMBOL"


class UndefinedReference(InvalidInput):
    """A call goes to a function that is absent, on a device that cannot be reached, or in a cycle."""

    code = "UNDEFINED_REFERENCE"


class InvalidArguments(InvalidInput):
    """A call's arrays do not fit the function's signature; the message names the argument."""

    code = "INVALID_ARGUMENTS"


class InvalidSelector(InvalidInput):
    """A device selector does not parse."""

    code = "INVALID_SELECTOR"


class InvalidFleet(InvalidInput):
    """A fleet file is wrong; the message names the entry and key."""

    code = "INVALID_FLEET"


class InvalidProgram(InvalidInput):
    """Assembly text or machine words of the accelerator are malformed."""

    code = "INVALID_PROGRAM"


class InvalidSpace(InvalidInput):
    """A search space has a bad parameter or constraint, or no valid configuration; the message says which."""

    code = "INVALID_SPACE"


class NotFound(InvalidInput):
    """The thing named (blob, lease, device, symbol) does not exist here."""

    code = "NOT_FOUND"
    status = "NOT_FOUND"


class ArtifactError(InvalidInput):
    """An artifact cannot be used."""

    code = "ARTIFACT_ERROR"


class ArtifactTruncated(ArtifactError):
    """The artifact ends before its own header says; copy it again."""

    code = "ARTIFACT_TRUNCATED"
    status = "DATA_LOSS"


class ArtifactCorrupt(ArtifactError):
    """A digest does not match its bytes, or a field is impossible; copy or build it again."""

    code = "ARTIFACT_CORRUPT"
    status = "DATA_LOSS"


class ArtifactVersion(ArtifactError):
    """The artifact's major version is unknown here; update the reader or build it again."""

    code = "ARTIFACT_VERSION"
    status = "FAILED_PRECONDITION"


class NoVariant(ArtifactError):
    """No slice of the artifact runs on this device; the message lists what it has and what is needed."""

    code = "NO_VARIANT"
    status = "FAILED_PRECONDITION"


class HostMismatch(ArtifactError):
    """The calling code was built for another host; build with ``target_host`` for this one."""

    code = "HOST_MISMATCH"
    status = "FAILED_PRECONDITION"


class KernelFailed(FarmError):
    """The kernel itself failed (crashed, faulted); look at the kernel, the farm is well."""

    code = "KERNEL_FAILED"
    status = "ABORTED"
    exit_code = 1


class KernelCrashed(KernelFailed):
    """The process that ran the kernel was ended by a signal, kept in ``details['signal']``."""

    code = "KERNEL_CRASHED"


class DeviceFault(KernelFailed):
    """The device stopped on a typed fault (an accelerator's, a WebAssembly trap), kept in ``details['fault']``."""

    code = "DEVICE_FAULT"


class BuildFailed(FarmError):
    """At least one function did not build; ``details`` and the message report each one."""

    code = "BUILD_FAILED"
    status = "FAILED_PRECONDITION"
    exit_code = 3


class PlugInFailed(BuildFailed):
    """An accelerator's package raised, did not answer or gave nonsense; report it to its author, who is named."""

    code = "PLUG_IN_FAILED"


class TimeLimit(FarmError):
    """The work ran past its own time limit and was killed; raise the limit or fix the work."""

    code = "TIME_LIMIT"
    status = "DEADLINE_EXCEEDED"
    exit_code = 4


class StillRunning(FarmError):
    """You stopped waiting before the work ended; it goes on: wait again."""

    code = "STILL_RUNNING"
    retryable = True
    status = "DEADLINE_EXCEEDED"
    exit_code = 4


class Cancelled(FarmError):
    """Somebody cancelled the work."""

    code = "CANCELLED"
    status = "CANCELLED"
    exit_code = 5


class InfrastructureError(FarmError):
    """The farm failed, not the work; submitting again is safe."""

    code = "INFRASTRUCTURE"
    retryable = True
    status = "UNAVAILABLE"
    exit_code = 6


class InvalidTransition(FarmError):
    """The farm's own state machine was asked for the impossible: a bug; report it with the message."""

    code = "INVALID_TRANSITION"


class DeviceLost(InfrastructureError):
    """The device or its agent went away during the work."""

    code = "DEVICE_LOST"


class BlobCorrupt(InfrastructureError):
    """A blob's bytes do not match its digest, on the way or in the store; send it again."""

    code = "BLOB_CORRUPT"
    status = "DATA_LOSS"


class StoreFull(InfrastructureError):
    """The content-addressed store cannot take the blob: no space, or it is over the size limit."""

    code = "STORE_FULL"
    status = "RESOURCE_EXHAUSTED"


class Fenced(InfrastructureError):
    """The epoch is no longer the device's current one: your lease ended; acquire again."""

    code = "FENCED"
    status = "ABORTED"


class NobodyCanServe(FarmError):
    """No device or builder of this farm fits; the message names the nearest."""

    code = "NOBODY_CAN_SERVE"
    status = "FAILED_PRECONDITION"
    exit_code = 7


class DeviceBusy(FarmError):
    """Devices fit but none became free in the time you were ready to wait."""

    code = "DEVICE_BUSY"
    retryable = True
    status = "RESOURCE_EXHAUSTED"
    exit_code = 4


class QuotaExceeded(FarmError):
    """Your account has as much waiting as it may; wait until some of it ends, or ask for more."""

    code = "QUOTA_EXCEEDED"
    retryable = True
    status = "RESOURCE_EXHAUSTED"
    exit_code = 4


class MeasuredSlower(FarmError):
    """A comparison found a candidate slower than the first beyond its threshold; look at what changed."""

    code = "MEASURED_SLOWER"
    status = "FAILED_PRECONDITION"
    exit_code = 9


class Inconclusive(FarmError):
    """A comparison ended before enough was known; give it more rounds, a larger threshold or a quieter device."""

    code = "INCONCLUSIVE"
    status = "FAILED_PRECONDITION"
    exit_code = 11


class NotAllowed(FarmError):
    """Your credentials do not allow this."""

    code = "NOT_ALLOWED"
    status = "PERMISSION_DENIED"
    exit_code = 8


class Unauthenticated(NotAllowed):
    """The tracker does not know who you are: the token is absent, unknown, expired or revoked."""

    code = "UNAUTHENTICATED"
    status = "UNAUTHENTICATED"


class TrackerUnreachable(FarmError):
    """No tracker answers at the address; start one with ``farm up`` or correct the address."""

    code = "TRACKER_UNREACHABLE"
    retryable = True
    status = "UNAVAILABLE"
    exit_code = 10


def all_errors(root: type[FarmError] = FarmError) -> Iterator[type[FarmError]]:
    """Yield `root` and every error below it, parents first."""
    yield root
    for child in root.__subclasses__():
        yield from all_errors(child)


def error_class(code: str) -> type[FarmError]:
    """Return the class whose stable code is `code`, or `FarmError` if a newer peer sent an unknown one."""
    return next((cls for cls in all_errors() if cls.code == code), FarmError)
