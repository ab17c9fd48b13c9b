"""Requests to compare and measure that no device could carry out."""

from __future__ import annotations

import pytest

from farm.api.v1 import measure_pb2
from farm.client.measuring import Workload
from farm.core.digest import digest_of
from farm.core.wire import digest_to_proto
from farm.errors import InvalidInput
from farm.measuring.checks import check_compare, check_rounds, check_workload
from farm.measuring.values import MAX_COMPARED, MAX_SUBJECTS


def request(candidates=2, **more):
    ref = measure_pb2.ArtifactRef(digest=digest_to_proto(digest_of(b"x")))
    subject = measure_pb2.Subject(artifact=ref, symbol="f")
    return measure_pb2.CompareRequest(subjects=[subject] * candidates, **more)


@pytest.mark.parametrize(
    ("candidates", "least", "most"), [(3, 0, 10_000), (3, 10_000, 0), (16, 10, 2_000)]
)
def test_comparison_of_more_samples_than_one_result_holds_is_refused(candidates, least, most):
    with pytest.raises(InvalidInput, match=f"use at most {MAX_COMPARED // candidates} rounds"):
        check_compare(request(candidates, min_rounds=least, max_rounds=most))
    check_rounds(candidates, 0, MAX_COMPARED // candidates)


def test_defaults_are_within_the_limit_for_any_number_of_candidates():
    check_compare(request(MAX_SUBJECTS))


@pytest.mark.parametrize("tolerance", [-0.1, 1.5, float("inf"), float("nan")])
def test_tolerance_that_means_nothing_is_refused_at_both_ends(tolerance):
    with pytest.raises(InvalidInput, match="tolerance"):
        Workload(tolerance=tolerance)
    with pytest.raises(InvalidInput, match="tolerance"):
        check_workload(measure_pb2.Workload(tolerance=tolerance))
    with pytest.raises(InvalidInput, match="tolerance"):
        check_compare(request(workload=measure_pb2.Workload(tolerance=tolerance)))


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_seed_out_of_range_is_refused(seed):
    with pytest.raises(InvalidInput, match="seed"):
        Workload(seed=seed)
