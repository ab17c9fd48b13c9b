"""Signatures: limits, JSON, checking arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.artifact import ParamSpec, Signature, check_inputs
from farm.artifact.abi import DTYPES, ReturnKind, decode_return, encode_return
from farm.core.elements import numpy_dtype
from farm.errors import InvalidArguments, InvalidInput

params = st.builds(
    ParamSpec,
    name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True),
    dtype=st.sampled_from(sorted(DTYPES)),
    shape=st.lists(st.integers(1, 9), max_size=5).map(tuple),
    role=st.sampled_from(["input", "output", "inout"]),
    align_bytes=st.sampled_from([0, 1, 2, 64, 4096]),
)
signatures = st.lists(params, max_size=6, unique_by=lambda param: param.name).map(
    lambda found: Signature(tuple(found))
)


@given(signatures)
def test_signature_json_round_trips_and_is_canonical(signature):
    data = signature.to_json()
    assert Signature.from_json(data) == signature
    assert json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode() == data


@given(signatures)
def test_check_inputs_accepts_what_the_signature_says(signature):
    check_inputs(
        "f", signature, [np.zeros(spec.shape, numpy_dtype(spec.dtype)) for spec in signature.inputs]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "1x"}, "malformed name"),
        ({"name": "x" * 257}, "malformed name"),
        ({"dtype": "float8"}, "unknown dtype"),
        ({"role": "in"}, "unknown role"),
        ({"align_bytes": 3}, "bad alignment"),
        ({"align_bytes": -1}, "bad alignment"),
        ({"align_bytes": 8192}, "bad alignment"),
        ({"shape": (0,)}, "bad shape"),
        ({"shape": (1,) * 17}, "bad shape"),
        ({"shape": (1 << 31, 3)}, "too large"),
    ],
)
def test_param_out_of_range_is_refused(change, message):
    fields = {"name": "x", "dtype": "int8", "shape": (1,), "role": "input", "align_bytes": 0}
    with pytest.raises(InvalidInput, match=message):
        ParamSpec(**{**fields, **change})


def test_signature_with_repeated_name_or_too_many_is_refused():
    spec = ParamSpec("x", "int8", (1,), "input")
    with pytest.raises(InvalidInput, match=r"used twice \(x\)"):
        Signature((spec, spec))
    many = tuple(ParamSpec(f"x{i}", "int8", (1,), "input") for i in range(257))
    with pytest.raises(InvalidInput, match="too many parameters"):
        Signature(many)


GOOD = {"name": "x", "dtype": "int8", "shape": [1], "role": "input", "align_bytes": 0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not an object"),
        (b'{"params":1}', "no list"),
        (json.dumps({"params": [1]}).encode(), "other keys"),
        (json.dumps({"params": [{**GOOD, "more": 1}]}).encode(), "other keys"),
        (json.dumps({"params": [{**GOOD, "name": 1}]}).encode(), "not all text"),
        (json.dumps({"params": [{**GOOD, "shape": [True]}]}).encode(), "not of integers"),
        (json.dumps({"params": [{**GOOD, "shape": 1}]}).encode(), "not of integers"),
        (json.dumps({"params": [{**GOOD, "align_bytes": 1.0}]}).encode(), "not of integers"),
        (b" " * (1 << 20) + b"1", "too long"),
    ],
)
def test_signature_json_malformed_is_refused(value, message):
    with pytest.raises(InvalidInput, match=message):
        Signature.from_json(value)


def test_check_inputs_names_argument_has_and_needs():
    signature = Signature((ParamSpec("a", "int8", (2,), "inout"),))
    with pytest.raises(InvalidArguments) as caught:
        check_inputs("f", signature, [np.zeros((2, 1), np.uint8)])
    assert caught.value.message == "f: argument a does not fit (has uint8[2, 1]); pass int8[2]"
    assert caught.value.details == {
        "symbol": "f",
        "argument": "a",
        "has": "uint8[2, 1]",
        "needs": "int8[2]",
    }


def test_check_inputs_with_wrong_count_lists_what_to_pass():
    signature = Signature((ParamSpec("a", "int8", (2,), "input"),))
    with pytest.raises(InvalidArguments, match=r"wrong number of inputs \(0\); pass 1: a: int8"):
        check_inputs("f", signature, [])


@given(st.sampled_from(ReturnKind), st.integers(0, 255))
def test_return_code_round_trips(kind, index):
    assert decode_return(encode_return(kind, index)) == (kind, index)


def test_return_code_unknown_has_no_kind():
    assert decode_return(200) == (None, 0)
    assert decode_return(-1) == (None, 0xFFFFFF)
