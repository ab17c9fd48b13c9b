"""Functions that come with requests: held while somebody needs them, within a limit."""

from __future__ import annotations

import asyncio

import pytest
from farm_tracker import functions as module
from farm_tracker.cas import BlobStore
from farm_tracker.functions import Functions

from farm.api.v1 import ir_pb2
from farm.core.digest import digest_of
from farm.errors import InvalidFunction, NotFound, StoreFull

ADD, MUL = (ir_pb2.Function(name=name).SerializeToString() for name in ("add", "mul"))
ADDED, MULTIPLIED = digest_of(ADD), digest_of(MUL)


@pytest.fixture
def blobs(tmp_path):
    return BlobStore(tmp_path)


def test_function_is_held_as_long_as_a_request_that_names_it(blobs):
    functions = Functions(blobs)

    async def main():
        second = functions.holding({}, [ADDED, MULTIPLIED])
        async with functions.holding({ADDED: ADD}, [ADDED]):
            await second.__aenter__()
        assert functions.code_of(ADDED) == ADD
        functions.check([ADDED])
        assert functions.named(ADDED, "add", whole=True) == ("add", False)
        await second.__aexit__(None, None, None)
        assert functions.code_of(ADDED) is None
        with pytest.raises(NotFound, match=ADDED.sha256):
            functions.check([ADDED])

    asyncio.run(main())
    assert not blobs.has(ADDED)


def test_function_beyond_the_limit_goes_to_the_store(blobs, monkeypatch):
    monkeypatch.setattr(module, "MAX_HELD_BYTES", len(ADD))
    functions = Functions(blobs)

    async def main():
        async with functions.holding({ADDED: ADD, MULTIPLIED: MUL}, [ADDED, MULTIPLIED]):
            assert functions.code_of(MULTIPLIED) is None
            functions.check([ADDED, MULTIPLIED])
            assert functions.named(MULTIPLIED, "mul", whole=True) == ("mul", False)
        async with functions.holding({MULTIPLIED: MUL}, [MULTIPLIED]):  # there is room again
            assert functions.code_of(MULTIPLIED) == MUL

    asyncio.run(main())
    assert (blobs.has(ADDED), blobs.has(MULTIPLIED)) == (False, True)


def test_request_whose_functions_find_no_room_holds_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_HELD_BYTES", len(ADD))
    functions = Functions(BlobStore(tmp_path, limit_bytes=1))

    async def main():
        with pytest.raises(StoreFull):
            async with functions.holding({ADDED: ADD, MULTIPLIED: MUL}, []):
                raise AssertionError
        assert functions.code_of(ADDED) is None
        async with functions.holding({MULTIPLIED: MUL}, []):
            assert functions.code_of(MULTIPLIED) == MUL

    asyncio.run(main())


def test_bytes_that_are_no_function_are_refused(blobs):
    functions = Functions(blobs)

    async def main():
        async with functions.holding({digest_of(b"\xff"): b"\xff"}, []):
            with pytest.raises(InvalidFunction, match="function f"):
                functions.named(digest_of(b"\xff"), "f", whole=True)

    asyncio.run(main())
