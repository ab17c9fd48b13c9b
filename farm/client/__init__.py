"""The client: build on a farm, take devices, run and time functions on them.

Owns: the Python interface to a tracker. Does not own: the wire (`farm.api`), errors across it (`farm.rpc`), or the
rules of a build (`farm.building`).

Invariant: every failure is a `FarmError`; leaving a ``with`` block gives the device back.

Examples
--------
::

    import farm
    from farm import te

    with farm.connect("127.0.0.1:7460") as client:
        artifact = client.build({"llvm": [function], "ea": [layer]})
        with client.acquire("kind=ea") as session:
            module = session.load(artifact)
            result = module["layer"](images, weights)
            print(module.time("layer", images, weights, repeat=20).median_s)
"""

from farm.client.accounts import AccountInfo
from farm.client.client import DEFAULT_ADDRESS, Client, connect, tracker_address
from farm.client.info import AgentInfo, DeviceInfo, Timing
from farm.client.job import (
    AttemptInfo,
    AttemptState,
    JobInfo,
    JobResult,
    JobState,
    LogChunk,
    Outcome,
    Verdict,
    Why,
)
from farm.client.jobs import Job
from farm.client.measuring import Candidate, Measured, Workload
from farm.client.module import RemoteFunction, RemoteModule
from farm.client.operators import EventInfo, Hold, LeaseInfo, StoreInfo
from farm.client.run import RunOutcome
from farm.client.session import Session

__all__ = [
    "DEFAULT_ADDRESS",
    "AccountInfo",
    "AgentInfo",
    "AttemptInfo",
    "AttemptState",
    "Candidate",
    "Client",
    "DeviceInfo",
    "EventInfo",
    "Hold",
    "Job",
    "JobInfo",
    "JobResult",
    "JobState",
    "LeaseInfo",
    "LogChunk",
    "Measured",
    "Outcome",
    "RemoteFunction",
    "RemoteModule",
    "RunOutcome",
    "Session",
    "StoreInfo",
    "Timing",
    "Verdict",
    "Why",
    "Workload",
    "connect",
    "tracker_address",
]
