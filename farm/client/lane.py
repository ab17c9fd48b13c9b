"""One device's part of a batch: taking it, measuring on it, giving it to others now and then.

Owns: the requests on their way to one device, what becomes of candidates when it is lost. Does not own: which
candidates there are (`farm.client.batch_measure`).

Invariant: a candidate is on one device at a time; the next is on its way before the one before has ended; a device's
loss is blamed on the one that was being measured alone.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from farm.api.v1 import measure_pb2
from farm.client.measuring import subject_of, workload_message
from farm.client.patience import may_mend
from farm.errors import (
    DeviceBusy,
    FarmError,
    Fenced,
    InfrastructureError,
    InvalidInput,
    NobodyCanServe,
    NotFound,
)
from farm.measuring import Measurement, Status
from farm.measuring.wire import options_to_proto
from farm.target import Target

if TYPE_CHECKING:
    from farm.client.batch_measure import Batch, Work
    from farm.client.info import DeviceInfo
    from farm.client.session import Session

AHEAD = 2
"""Requests on their way: one that is measured, one whose artifact is fetched meanwhile."""
MAX_LOSSES = 2
"""Distinct devices that a candidate may be lost with before it is quarantined."""
MAX_TRIES = 4
"""Of one candidate, on one device too."""
HOLD_S = 120.0
"""How long a device is kept before others who wait may have it."""
IDLE_S = 5.0
"""How long a device is kept while nothing is ready for it."""
WAIT_S = 600.0
"""How long one request for a device waits in the queue; there is another after it."""
AWAY_S = 120.0
PAUSE_S = 0.5


class Lane:
    """A thread that measures on one device after another."""

    def __init__(self, batch: Batch, number: int) -> None:
        self._batch = batch
        self._thread = threading.Thread(
            target=self._serve, name=f"farm-measure-{number}", daemon=True
        )
        self._session: Session | None = None
        self._last: Measurement | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def interrupt(self) -> None:
        """Give the device back at once; the batch is closing."""
        session = self._session
        if session is not None:
            with contextlib.suppress(FarmError):
                session.close()

    def join(self, limit_s: float) -> None:
        """Wait until it has ended, at most so long."""
        if self._thread.ident is not None:
            self._thread.join(limit_s)

    def _serve(self) -> None:
        batch = self._batch
        failing_since, given = None, -1
        while not batch.closing:
            work = batch.take(wait_s=3600.0)
            if work is None:
                continue
            batch.put_back([work])  # it is taken again when there is a device for it
            try:
                self._measure_on_some_device()
                failing_since = None
            except DeviceBusy:
                continue
            except FarmError as error:
                now = time.monotonic()
                if failing_since is None or batch.given != given:
                    failing_since, given = now, batch.given
                lost = isinstance(error, NobodyCanServe) and self._last is not None
                if not (may_mend(error) or lost) or now - failing_since > AWAY_S:
                    batch.fail(error)
                    return
                time.sleep(PAUSE_S)
            except Exception as error:  # noqa: BLE001 - a thread's end: the caller must learn of it
                batch.fail(unexpected(error))
                return

    def _measure_on_some_device(self) -> None:
        plan = self._batch.plan
        with self._batch.client.acquire(plan.selector, wait_s=WAIT_S, holder="measure") as session:
            self._session = session
            try:
                if not self._batch.closing:
                    self._measure_on(session)
            finally:
                self._session = None

    def _measure_on(self, session: Session) -> None:
        """Measure until the device has been kept long enough, or nothing is ready for it."""
        batch = self._batch
        store = batch.client.store
        workload = workload_message(batch.plan.workload, _hosts(session.device), store)
        until = time.monotonic() + HOLD_S
        sent: deque[tuple[Work, int]] = deque()
        try:
            while True:
                while len(sent) < AHEAD and time.monotonic() < until:
                    work = batch.take(0.0 if sent else IDLE_S)
                    if work is None:
                        break
                    try:
                        request = self._request(work, workload)
                    except InvalidInput as error:
                        batch.done(work, Status.REFUSED, error, device_id=session.device.device_id)
                        continue
                    work.spent("ready")
                    sent.append((work, session.send_measure(request)))
                if not sent:
                    return
                found = session.receive_measured(sent[0][1])
                work, _ = sent.popleft()
                self._last = found
                work.spent("device")
                batch.done(work, found.status, found.error, found, session.device.device_id)
                if sent:
                    sent[0][0].since = time.monotonic()
        except FarmError as error:
            works = [work for work, _ in sent]
            if works:
                self._blame(works.pop(0), session.device.device_id, error)
            batch.put_back(works)
            if isinstance(error, NotFound):
                store.forget()
            raise

    def _request(self, work: Work, workload: measure_pb2.Workload) -> measure_pb2.MeasureRequest:
        assert work.artifact is not None, "only what is built is ready"
        candidate, plan = work.candidate, self._batch.plan
        return measure_pb2.MeasureRequest(
            subject=subject_of(
                work.artifact, candidate.symbol, candidate.key, self._batch.client.store
            ),
            workload=workload,
            options=options_to_proto(plan.options),
            incumbent=self._batch.incumbent(self._last),
            unraced=not plan.race,
        )

    def _blame(self, work: Work, device_id: str, error: FarmError) -> None:
        """Decide what becomes of the candidate that was being measured when something failed."""
        batch = self._batch
        work.tries += 1
        if batch.closing:
            return
        if isinstance(error, Fenced) or error.code == "DEVICE_LOST":
            work.lost_devices.append(device_id)
        if len(set(work.lost_devices)) >= MAX_LOSSES or work.tries >= MAX_TRIES:
            reason = (
                f"candidate {work.candidate.key}: {work.tries} measures of it were lost, on "
                f"{', '.join(sorted(set(work.lost_devices))) or device_id} ({error.message}); it is not tried again"
            )
            batch.done(work, Status.QUARANTINED, InfrastructureError(reason), device_id=device_id)
        else:
            batch.put_back([work])


def unexpected(error: Exception) -> InfrastructureError:
    """Return what a thread's end by a defect is for the caller."""
    return InfrastructureError(f"measure: {type(error).__name__}: {error}; report this defect")


def _hosts(device: DeviceInfo) -> list[Target]:
    """Return the CPU that a device's own code runs on, most demanding first; nothing for one that this is."""
    targets = [Target.parse(text) for text in device.targets]
    return [target for target in targets if target.kind == "llvm"][:1]
