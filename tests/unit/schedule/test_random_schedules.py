"""Random functions under random schedules give what they gave; a failing one shrinks to a small printed function."""

from __future__ import annotations

from fuzz.chooser import Drawn
from fuzz.functions import random_function
from fuzz.oracle import check_schedule
from fuzz.schedules import Random
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_random_schedule_of_random_function_keeps_its_results(data: st.DataObject) -> None:
    choose = Drawn(data.draw)
    function = random_function(choose)
    made = Random(choose, function)
    made.run()
    note(f"{function}\n{made.schedule.trace}\n{made.schedule}")
    check_schedule(function, made.schedule, 0)
