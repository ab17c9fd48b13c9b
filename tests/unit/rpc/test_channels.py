"""Addresses."""

from __future__ import annotations

import pytest

from farm.errors import InvalidInput
from farm.rpc.channels import check_address


@pytest.mark.parametrize("address", ["localhost:1", "10.0.0.1:65535", "[::1]:50051", "a-b.c:80"])
def test_address_well_formed_is_kept(address):
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:0", "host:65536", "unix:/x", "::1:80", "a b:1"]
)
def test_address_malformed_is_refused(address):
    with pytest.raises(InvalidInput, match="use host:port"):
        check_address(address)
