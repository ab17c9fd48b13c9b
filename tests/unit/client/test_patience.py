"""When a call is tried again, how long, and when not, on a virtual clock."""

from __future__ import annotations

import pytest

from farm.client.patience import FIRST_PAUSE_S, LONGEST_PAUSE_S, Patience, is_away
from farm.errors import (
    Cancelled,
    FarmError,
    InfrastructureError,
    NotFound,
    StillRunning,
    StoreFull,
    TimeLimit,
    TrackerUnreachable,
)

AWAY = TrackerUnreachable("tracker: nobody answers; start one")


class Time:
    """A clock that sleeping moves."""

    def __init__(self):
        self.at = 100.0
        self.pauses = []

    def now(self):
        return self.at

    def wall(self):
        return self.at

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.at += seconds


class Messages:
    """A stream that yields, then fails or ends."""

    def __init__(self, messages, error=None):
        self.messages, self.error = messages, error
        self.cancelled = False

    def __iter__(self):
        yield from self.messages
        if self.error is not None:
            raise self.error

    def cancel(self):
        self.cancelled = True


@pytest.fixture
def clock():
    return Time()


def patient(clock, deadline=None, away_s=60.0):
    return Patience("here:1", deadline, "job j", away_s, clock, clock.sleep)


def failing(times, error, answer="answer"):
    left = [error] * times

    def attempt(limit_s):
        if left:
            raise left.pop()
        return answer

    return attempt


def test_call_is_tried_until_the_tracker_answers_with_growing_pauses(clock):
    assert patient(clock).call(failing(9, AWAY)) == "answer"
    assert len(clock.pauses) == 9
    for number, pause in enumerate(clock.pauses):
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**number)
        assert longest / 2 <= pause <= longest


def test_call_gives_up_after_the_time_away(clock):
    with pytest.raises(TrackerUnreachable):
        patient(clock).call(failing(1000, AWAY))
    assert 60 <= sum(clock.pauses) <= 60 + LONGEST_PAUSE_S


def test_call_ends_with_the_caller_s_deadline(clock):
    with pytest.raises(StillRunning, match="job j: not ended in time; wait again"):
        patient(clock, deadline=105.0).call(failing(1000, AWAY))
    assert clock.at == pytest.approx(105.0)


def test_call_is_given_no_more_than_what_is_left(clock):
    assert patient(clock, deadline=103.0).call(lambda limit_s: limit_s) == 3.0
    assert patient(clock).call(lambda limit_s: limit_s) == 10.0


def test_call_that_was_refused_is_not_tried_again(clock):
    for error in (NotFound("x: y; z"), StoreFull("x: y; z"), TimeLimit("x: y; z")):
        with pytest.raises(type(error)):
            patient(clock).call(failing(1, error))
    assert clock.pauses == []


def test_call_that_took_too_long_is_tried_again_unless_it_was_the_caller_s_time(clock):
    def slow(limit_s):
        clock.at += limit_s
        raise TimeLimit("call: DEADLINE_EXCEEDED; -", grpc="DEADLINE_EXCEEDED")

    with pytest.raises(StillRunning):
        patient(clock, deadline=125.0).call(slow)
    with pytest.raises(TimeLimit):
        patient(clock, away_s=25.0).call(slow)


def test_stream_is_opened_again_where_it_broke(clock):
    streams = [Messages([1, 2], AWAY), Messages([], AWAY), Messages([3])]
    opened = iter(streams)
    assert list(patient(clock).stream(lambda limit_s: next(opened))) == [1, 2, 3]
    assert [stream.cancelled for stream in streams] == [True] * 3
    assert len(clock.pauses) == 2


def test_stream_whose_time_passed_is_opened_again_without_a_pause(clock):
    over = TimeLimit("call: DEADLINE_EXCEEDED; -", grpc="DEADLINE_EXCEEDED")
    opened = iter([Messages([1], over), Messages([2])])
    assert list(patient(clock).stream(lambda limit_s: next(opened))) == [1, 2]
    assert clock.pauses == []


def test_stream_that_answers_now_and_then_is_never_given_up(clock):
    opened = iter([*(Messages([n], AWAY) for n in range(500)), Messages([])])
    assert list(patient(clock, away_s=0.3).stream(lambda limit_s: next(opened))) == list(range(500))


def test_stream_left_by_its_reader_is_cancelled(clock):
    stream = Messages([1, 2, 3])
    reading = patient(clock).stream(lambda limit_s: stream)
    assert next(reading) == 1
    reading.close()
    assert stream.cancelled


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (AWAY, True),
        (InfrastructureError("tracker: it is being stopped; again"), True),
        (Cancelled("call: CANCELLED; -", grpc="CANCELLED"), True),
        (TimeLimit("call: -; -", grpc="DEADLINE_EXCEEDED"), True),
        (InfrastructureError("call: -; -", grpc="RESOURCE_EXHAUSTED"), False),
        (Cancelled("job: cancelled; -"), False),
        (TimeLimit("kernel: too long; -"), False),
        (StoreFull("store: full; -"), False),
        (FarmError("tracker: internal error; -"), False),
    ],
)
def test_only_errors_that_pass_by_themselves_mean_away(error, away):
    assert is_away(error) is away
