"""Tokens: their form, and what is kept of them."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.core.tokens import digest_of_token, equal, new_token, parse_token
from farm.errors import InvalidInput

KEY = bytes(range(32))


def zeros(count):
    return bytes(count)


def test_token_is_its_id_and_256_random_bits():
    token = new_token(zeros)
    assert token.token_id == "0" * 16
    assert token.text == "farm_" + "0" * 16 + "_" + "A" * 43
    assert new_token().text != new_token().text


@given(st.binary(min_size=40, max_size=40))
def test_token_of_any_bytes_parses_to_itself(data):
    taken = [data[:8], data[8:]]
    token = new_token(lambda count: taken.pop(0))
    assert parse_token(token.text) == token


def test_token_does_not_show_its_secret_in_a_repr():
    token = new_token()
    assert token.text not in repr(token)


@pytest.mark.parametrize(
    "text", ["", "farm_", "x" * 200, "farm_0_" + "A" * 43, new_token(zeros).text + "\n", "é" * 65]
)
def test_token_malformed_is_refused_without_repeating_it(text):
    with pytest.raises(InvalidInput, match="token: malformed") as caught:
        parse_token(text)
    assert not text or text not in caught.value.message


def test_digest_is_hmac_sha256_and_differs_by_key():
    text = new_token(zeros).text
    assert digest_of_token(KEY, text) == hmac.new(KEY, text.encode(), hashlib.sha256).digest()
    assert not equal(digest_of_token(KEY, text), digest_of_token(bytes(32), text))
