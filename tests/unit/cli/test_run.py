"""``farm run``: its inputs, and everything that is refused before a tracker is asked."""

from __future__ import annotations

import os

import numpy as np
import pytest

from farm.artifact import ParamSpec, check_inputs
from farm.cli.files import read_array
from farm.cli.run import random_array, summary
from farm.core.elements import numpy_dtype
from farm.errors import InvalidArguments, InvalidInput

SPEC = ParamSpec("a", "int8", (2, 3), "input")


@pytest.fixture
def saved(tmp_path):
    def save(array):
        path = tmp_path / "a.npy"
        np.save(path, array, allow_pickle=True)
        return path

    return save


def test_array_of_the_parameter_is_read_in_either_order(saved):
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    for stored in (array, np.asfortranarray(array)):
        read = read_array(saved(stored), SPEC)
        assert read.flags.c_contiguous
        assert read.dtype == np.int8
        assert read.tolist() == array.tolist()


def test_scalar_is_read_as_a_scalar(saved):
    read = read_array(saved(np.float32(2.5)), ParamSpec("s", "float32", (), "input"))
    assert (read.shape, read.tolist()) == ((), 2.5)


def test_bfloat16_is_read_from_what_numpy_saves_of_it(saved):
    spec = ParamSpec("h", "bfloat16", (3,), "input")
    array = np.array([1.5, -2, np.inf], numpy_dtype("bfloat16"))
    read = read_array(saved(array), spec)
    assert (read.dtype, read.tobytes()) == (array.dtype, array.tobytes())
    for other in (array.astype(np.float16), array.view(np.uint16)):
        with pytest.raises(InvalidArguments, match=r"save bfloat16\[3\]"):
            read_array(saved(other), spec)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_floats_of_16_bits_are_between_one_and_minus_one(dtype):
    found = random_array(ParamSpec("h", dtype, (100,), "input"), 3)
    assert found.dtype == numpy_dtype(dtype)
    assert len(np.unique(found.astype(np.float32))) > 10
    assert np.abs(found.astype(np.float32)).max() <= 1


@pytest.mark.parametrize(
    ("array", "has"),
    [
        (np.zeros((2, 3), np.int16), "int16[2, 3]"),
        (np.zeros((3, 2), np.int8), "int8[3, 2]"),
        (np.zeros((2, 3), ">i2"), ">i2[2, 3]"),
    ],
)
def test_array_that_does_not_fit_is_refused_with_both_forms(saved, array, has):
    with pytest.raises(InvalidArguments) as caught:
        read_array(saved(array), SPEC)
    assert caught.value.details == {"argument": "a", "has": has, "needs": "int8[2, 3]"}


def test_pickled_array_is_refused_unread(saved):
    with pytest.raises(InvalidInput, match="Python objects"):
        read_array(saved(np.array([{}], dtype=object)), SPEC)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x"])
def test_array_file_of_another_length_than_its_header_says_is_refused(saved, change):
    path = saved(np.zeros((2, 3), np.int8))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InvalidInput, match="damaged"):
        read_array(path, SPEC)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00\x05\x00{", b"x" * 100])
def test_file_that_is_no_array_is_refused(tmp_path, data):
    path = tmp_path / "a.npy"
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"no \.npy file"):
        read_array(path, SPEC)


@pytest.mark.parametrize(
    "header", [b"[" * 9000, b"(" * 9000, b"\x00" * 90, b"{'shape': " + b"-" * 9000]
)
def test_array_header_that_does_not_parse_is_refused(tmp_path, header):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(InvalidInput, match=r"no \.npy file"):
        read_array(path, SPEC)


def test_array_from_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(InvalidInput, match="no regular file"):
        read_array(path, SPEC)


def test_array_header_of_an_unknown_version_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x09\x00" + bytes(100))
    with pytest.raises(InvalidInput, match="unknown version"):
        read_array(path, SPEC)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "uint64", "float32", "float64"]
)
def test_random_array_fits_its_parameter_and_depends_on_name_and_seed(dtype):
    spec = ParamSpec("a", dtype, (40, 5), "input")
    array = random_array(spec, 7)
    check_inputs("f", _signature(spec), [array])
    assert np.array_equal(array, random_array(spec, 7))
    assert not np.array_equal(array, random_array(spec, 8))
    assert not np.array_equal(array, random_array(ParamSpec("b", dtype, (40, 5), "input"), 7))


def _signature(spec):
    from farm.artifact import Signature

    return Signature((spec,))


def test_summary_tells_numbers_that_json_has_not_as_text():
    assert summary(np.array([1.5, np.nan, np.inf], np.float32)) == {
        "dtype": "float32",
        "shape": [3],
        "min": "nan",
        "max": "nan",
        "mean": "nan",
        "first": [1.5, "nan", "inf"],
    }


def test_summary_of_integers_and_booleans_is_exact():
    assert summary(np.array([[2**62, 1]], np.int64)) == {
        "dtype": "int64",
        "shape": [1, 2],
        "min": 1,
        "max": 2**62,
        "mean": float(2**61),
        "first": [2**62, 1],
    }
    assert summary(np.array(True)) == {
        "dtype": "bool",
        "shape": [],
        "min": True,
        "max": True,
        "mean": 1.0,
        "first": [True],
    }


@pytest.mark.parametrize(
    ("options", "code", "what"),
    [
        ((), "INVALID_INPUT", "missing a: int8[2, 3], b: float32[4]"),
        (("--input", "a"), "INVALID_INPUT", "not NAME=FILE.npy of an input"),
        (("--input", "z=a.npy"), "INVALID_INPUT", "takes a: int8[2, 3], b: float32[4]"),
        (("--input", "c=a.npy"), "INVALID_INPUT", "not NAME=FILE.npy of an input"),
        (("--input", "a=a.npy", "--input", "a=a.npy"), "INVALID_INPUT", "given twice"),
        (("--random", "1", "--input", "a=absent.npy"), "INVALID_INPUT", "absent.npy"),
        (("--random", "1", "--input", "a=wrong.npy"), "INVALID_ARGUMENTS", "int8[3, 2]"),
        (("--random", "-1"), "USAGE", "--random"),
        (("--random", "1", "--repeat", "-1"), "USAGE", "--repeat"),
        (("--random", "1", "--repeat", "10001"), "USAGE", "--repeat"),
        (("--random", "1", "--limit", "0"), "USAGE", "--limit"),
        (("--random", "1", "--limit", "601"), "USAGE", "--limit"),
        (("--random", "1", "--limit", "nan"), "USAGE", "--limit"),
        (("--random", "1", "--wait", "inf"), "USAGE", "--wait"),
        (("--random", "1", "--save", "mix.farm"), "USAGE", "--save"),
        (("--random", "1", "--save", "mix.farm/below"), "INVALID_INPUT", "mix.farm/below"),
    ],
)
def test_run_with_options_that_cannot_be_is_refused(cli, artifact, options, code, what):
    np.save("a.npy", np.zeros((2, 3), np.int8))
    np.save("wrong.npy", np.zeros((3, 2), np.int8))
    ended = cli("run", artifact, "mix", *options, "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, code)
    assert what in ended.error["message"]


def test_run_of_a_function_that_is_not_there_is_refused_with_the_known_ones(cli, artifact):
    ended = cli("run", artifact, "absent", "--random", "1", "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "NOT_FOUND")
    assert ended.error["message"] == "function absent: not in this artifact; it has mix"


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda data: data[: len(data) // 2], "ARTIFACT_TRUNCATED"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 0x80]), "ARTIFACT_CORRUPT"),
    ],
)
def test_run_of_a_damaged_artifact_is_refused(cli, artifact, damage, code):
    artifact.write_bytes(damage(artifact.read_bytes()))
    ended = cli("run", artifact, "mix", "--random", "1", "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, code)
