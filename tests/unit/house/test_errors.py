"""Each error of `farm.errors` keeps the promises that the tree makes."""

from __future__ import annotations

import re

import grpc
import pytest

from farm import errors

# Other test modules may declare errors of their own; this is about the shipped ones.
ERRORS = [cls for cls in errors.all_errors() if cls.__module__ == "farm.errors"]
EXIT_CODES = {
    1: "the kernel failed its verdict",
    2: "usage or rejected input",
    3: "build error",
    4: "time limit",
    5: "cancelled",
    6: "infrastructure after retries",
    7: "nobody can serve this",
    8: "not allowed",
    9: "regression",
    10: "tracker unreachable",
    11: "inconclusive",
}


def test_errors_of_the_module_are_all_in_the_tree() -> None:
    declared = {
        thing
        for thing in vars(errors).values()
        if isinstance(thing, type) and issubclass(thing, BaseException)
    }
    assert declared == set(ERRORS)


def test_error_codes_are_unique() -> None:
    codes = [cls.code for cls in ERRORS]
    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize("cls", ERRORS)
def test_error_has_a_code_of_its_own_that_finds_it(cls: type[errors.FarmError]) -> None:
    assert "code" in vars(cls)
    assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", cls.code)
    assert errors.error_class(cls.code) is cls


@pytest.mark.parametrize("cls", ERRORS)
def test_error_has_a_grpc_status_of_a_failure(cls: type[errors.FarmError]) -> None:
    assert cls.status in grpc.StatusCode.__members__
    assert cls.status != "OK"


@pytest.mark.parametrize("cls", ERRORS)
def test_error_has_a_documented_exit_code(cls: type[errors.FarmError]) -> None:
    assert cls.exit_code in EXIT_CODES


@pytest.mark.parametrize("cls", ERRORS)
def test_error_has_a_docstring_of_its_own(cls: type[errors.FarmError]) -> None:
    assert len((vars(cls)["__doc__"] or "").split()) >= 4


@pytest.mark.parametrize("cls", ERRORS)
def test_error_keeps_its_message_and_details(cls: type[errors.FarmError]) -> None:
    error = cls("device a: gone (5 s); acquire again", device_id="a")
    assert (str(error), error.message) == ("device a: gone (5 s); acquire again",) * 2
    assert error.details == {"device_id": "a"}


def test_error_class_of_an_unknown_code_is_the_base() -> None:
    assert errors.error_class("FROM_A_NEWER_PEER") is errors.FarmError
