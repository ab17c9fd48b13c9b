from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from farm.core.recent import Recent


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60))
def test_recent_keeps_the_entries_used_last(most, steps):
    recent, model = Recent(most), []
    for is_kept, key in steps:
        if is_kept:
            recent.keep(key, -key)
        found = recent.get(key)
        assert found == (-key if is_kept or key in model else None)
        if found is not None:
            model = [*(it for it in model if it != key), key][-most:]


def test_recent_may_be_shared_by_threads():
    recent = Recent(3)

    def work(seed):
        for number in range(2_000):
            key = (number * 7 + seed) % 11
            recent.keep(key, key)
            assert recent.get(key + 1) in (None, key + 1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sum(recent.get(key) is not None for key in range(11)) <= 3
