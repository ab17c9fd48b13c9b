from __future__ import annotations

import pytest
from farm_tracker.requests import BuildRequest, canonical, codes_of, item
from farm_tracker.state.work import ItemKind

from farm.core.digest import Digest, digest_of
from farm.errors import DuplicateSymbol, InvalidInput, InvalidTarget

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"
ARM = "llvm -mtriple=aarch64-linux-gnu -mcpu=generic"
FUNCTION = digest_of(b"f")


def one(symbol="f", target=X86, kind=ItemKind.DEVICE):
    return item(kind, target, symbol, FUNCTION)


def test_request_keeps_the_items_in_order_with_family_and_id():
    request = BuildRequest("key", X86, (one(target="ea -config=ea16"), one(target=ARM)), False)
    assert [it.family for it in request.items] == ["ea", "llvm/aarch64"]
    assert request.items[1].target_id == canonical(ARM).id


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: BuildRequest("k", X86, (), False), InvalidInput),
        (lambda: BuildRequest("k" * 129, X86, (one(),), False), InvalidInput),
        (lambda: BuildRequest("k", X86, (one(), one()), False), DuplicateSymbol),
        (lambda: BuildRequest("k", "ea -config=ea16", (one(),), False), InvalidTarget),
        (lambda: BuildRequest("k", "llvm", (one(),), False), InvalidTarget),
        (
            lambda: BuildRequest("k", X86, (one(target=ARM, kind=ItemKind.HOST),), False),
            InvalidTarget,
        ),
        (
            lambda: BuildRequest("k", X86, tuple(one(f"f{i}") for i in range(4097)), False),
            InvalidInput,
        ),
        (lambda: one(symbol="a b"), InvalidInput),
        (lambda: one(symbol="f" * 257), InvalidInput),
        (lambda: one(target="llvm"), InvalidTarget),
        (lambda: one(target="cuda"), InvalidTarget),
        (lambda: item(ItemKind.DEVICE, X86, "f", Digest("0" * 64, 1 << 30)), InvalidInput),
    ],
)
def test_request_that_breaks_a_rule_is_refused(make, error):
    with pytest.raises(error):
        make()


def test_functions_that_come_with_a_request_are_kept_once():
    items = [(one(), b"f"), (one(target=ARM), b""), (one(kind=ItemKind.HOST), b"f")]
    assert codes_of(items) == {FUNCTION: b"f"}


def many_codes():
    for number in range(65):
        code = bytes([number]) * (64 << 10)
        yield item(ItemKind.DEVICE, X86, f"f{number}", digest_of(code)), code


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([(one(), b"g")], "not what its item names"),
        ([(item(ItemKind.DEVICE, X86, "f", digest_of(bytes(65537))), bytes(65537))], "too large"),
        (list(many_codes()), "4259840 bytes of functions"),
    ],
)
def test_functions_that_must_not_come_with_a_request_are_refused(items, message):
    with pytest.raises(InvalidInput, match=message):
        codes_of(items)


def test_request_may_have_one_symbol_for_several_targets_and_kinds():
    items = (one(), one(target=ARM), one(kind=ItemKind.HOST))
    assert BuildRequest("k", X86, items, False).items == items


def test_target_of_an_accelerator_that_the_tracker_has_not_installed_is_taken_in_canonical_form():
    target = canonical("zork -config=big")
    assert (target.family, target.is_accelerator) == ("zork", True)
    for text in ("zork", "zork  -config=big", "zork -config=big -knob=1", "Zork -config=big"):
        with pytest.raises(InvalidTarget):
            canonical(text)
