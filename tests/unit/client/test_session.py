"""Sessions that end while the tracker is away."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from farm.client import session as module
from farm.client.session import Lease, Session
from farm.errors import Fenced, TrackerUnreachable

AWAY = TrackerUnreachable("tracker: nobody answers")


def ended(monkeypatch, answers):
    """Close a session whose lease is released with these answers; return what asking for it gave, in order."""
    monkeypatch.setattr(module, "RELEASE_PAUSE_S", 0.001)
    told, over = [], threading.Event()

    def release(request, timeout):
        answer = answers[len(told)]
        told.append((request.lease_id, request.epoch, request.lease_token))
        if len(told) == len(answers):
            over.set()
        if answer is not None:
            raise answer

    leases = SimpleNamespace(Release=release)
    sessions = SimpleNamespace(Attach=lambda requests: SimpleNamespace(cancel=lambda: None))
    session = Session(sessions, leases, None, Lease("l", 3, 60.0, "secret"), None)
    if answers[0] is None:
        session.close()
    else:
        with pytest.raises(type(answers[0])):
            session.close()
    assert over.wait(60)
    for thread in threading.enumerate():
        if "_release_later" in thread.name:
            thread.join(60)
    session.close()  # does nothing
    return told


@pytest.mark.parametrize(
    "answers",
    [
        (None,),
        (AWAY, AWAY, AWAY, None),
        (AWAY, Fenced("lease l: it ended")),
        (AWAY, ValueError("Cannot invoke RPC on closed channel!")),
        (Fenced("lease l: it ended"),),
    ],
)
def test_device_is_given_back_once_as_soon_as_the_tracker_is_there(monkeypatch, answers):
    assert ended(monkeypatch, answers) == [("l", 3, "secret")] * len(answers)
