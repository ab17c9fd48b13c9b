"""Operators' calls, against a server that breaks streams."""

from __future__ import annotations

import pytest

from farm.errors import Fenced, InvalidInput, NotAllowed, NotFound, StillRunning


@pytest.mark.parametrize("verb", ["drain", "maintenance", "retire"])
def test_device_is_taken_out_of_service_and_back(client, tracker, verb):
    word = {"drain": "draining", "maintenance": "maintenance", "retire": "retired"}[verb]
    (device,) = getattr(client, verb)("device_id=cpu-1", "new fan", 60)
    assert (device.device_id, device.admin) == ("cpu-1", word)
    request = tracker.admin.requests[-1]
    assert (request.selector, request.reason, request.until_s) == ("device_id=cpu-1", "new fan", 60)
    (device,) = client.resume("device_id=cpu-1")
    assert device.admin == "enabled"


def test_change_of_every_device_at_once_is_refused_before_it_is_sent(client, tracker):
    with pytest.raises(InvalidInput, match="every device"):
        client.drain(" ", "why")
    assert tracker.admin.requests == []


def test_change_of_a_device_that_does_not_exist_says_so(client):
    with pytest.raises(NotFound):
        client.drain("device_id=other", "why")


def test_events_come_once_each_in_order_across_broken_streams(client, tracker, later):
    tracker.admin.break_after = 2
    for number in range(5):
        tracker.admin.happen("device.drained", f"d{number}", "drained", "me")
    later(lambda: tracker.admin.streams >= 3, tracker.admin.happen, "late", "x", "y")
    events = client.events(follow=True, timeout_s=120)
    numbers = [next(events).number for _ in range(6)]
    events.close()
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert tracker.admin.streams >= 3


def test_events_after_a_number_end_without_following(client, tracker):
    for number in range(5):
        tracker.admin.happen("device.drained", f"d{number}", "drained", "me")
    found = list(client.events(after=3))
    assert [(e.number, e.at, e.kind, e.subject, e.text, e.actor) for e in found] == [
        (4, 1e9, "device.drained", "d3", "drained", "me"),
        (5, 1e9, "device.drained", "d4", "drained", "me"),
    ]


def test_events_that_are_followed_end_with_their_time(client):
    with pytest.raises(StillRunning):
        list(client.events(follow=True, timeout_s=0.3))


def test_hold_extend_and_release_by_id(client, tracker):
    hold = client.hold("kind=cpu", ttl_s=90, holder="me")
    assert (hold.lease_id, hold.epoch, hold.device.device_id) == ("lease-1", 1, "cpu-1")
    assert hold.remaining_s == 90
    (lease,) = client.leases()
    assert (lease.lease_id, lease.device_id, lease.epoch) == ("lease-1", "cpu-1", 1)
    assert (lease.holder, lease.account, lease.job_id) == ("me", "own", "")
    assert client.extend("lease-1", 120) == 120
    assert client.leases()[0].remaining_s == 120
    client.release("lease-1")
    assert tracker.leases.released == [("lease-1", 1)]
    assert client.leases() == []


def test_lease_is_extended_and_released_by_whoever_has_its_token(client, tracker):
    tracker.leases.strict = True
    hold = client.hold()
    assert hold.lease_token not in repr(hold)
    for call in (client.extend, client.release):
        with pytest.raises(NotAllowed):
            call(hold.lease_id)
    assert client.extend(hold.lease_id, 90, lease_token=hold.lease_token) == 90
    client.release(hold.lease_id, lease_token=hold.lease_token)
    assert client.leases() == []


def test_lease_that_ended_is_told_apart_by_who_knows_its_epoch(client):
    with pytest.raises(NotFound, match="farm who"):
        client.extend("lease-7")
    with pytest.raises(Fenced):
        client.extend("lease-7", epoch=7)
    client.release("lease-7", epoch=7)
