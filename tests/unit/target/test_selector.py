"""Selectors: parsing, matching, what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import InvalidSelector
from farm.target import Selector
from farm.target.selector import Term

KEYS = st.sampled_from(["arch", "board", "cpu-feature/avx2", "pool.x", "a_b"])
VALUES = st.text("abc09 ._-:/+", max_size=5).map(str.strip)
TERMS = st.builds(Term, KEYS, VALUES, st.booleans()) | KEYS.map(lambda key: Term(key, None, False))
SELECTORS = st.lists(TERMS, max_size=6).map(lambda terms: Selector(tuple(terms)))
LABELS = st.dictionaries(KEYS, VALUES)


@given(SELECTORS)
def test_parse_of_the_written_form_gives_the_same_selector(selector: Selector) -> None:
    assert Selector.parse(str(selector)) == selector


@given(SELECTORS, LABELS)
def test_matches_agrees_with_the_meaning_of_each_term(
    selector: Selector, labels: dict[str, str]
) -> None:
    def holds(term: Term) -> bool:
        if term.value is None:
            return term.key in labels
        same = term.key in labels and labels[term.key] == term.value
        return same is not term.negated

    failed = tuple(term for term in selector.terms if not holds(term))
    assert selector.unmatched(labels) == failed
    assert selector.matches(labels) is (not failed)


def test_parse_spaces_and_empty_pieces_are_ignored() -> None:
    expected = (Term("a", "1", False), Term("b", "x y", True), Term("c", None, False))
    assert Selector.parse(" a=1 ,, b!=x y,c ,").terms == expected
    assert Selector.parse("").matches({}) is True


def test_absent_label_fulfils_only_the_negation() -> None:
    selector = Selector.parse("a=1,b!=1,c,d=")
    assert [str(term) for term in selector.unmatched({})] == ["a=1", "c", "d="]
    assert selector.matches({"a": "1", "b": "2", "c": "", "d": ""})


@pytest.mark.parametrize(
    "term", ["A=1", "=1", "a==1", "a!1", "a=b=c", "a = 1", "a<1", "1a", "a=b!", "a=\udcff"]
)
def test_parse_malformed_term_is_refused_with_it(term: str) -> None:
    with pytest.raises(InvalidSelector) as error:
        Selector.parse(f"ok=1,{term}")
    assert error.value.message == (
        f"selector: malformed term ({term!r}); use key=value, key!=value or key"
    )


def test_parse_too_long_key_or_value_is_refused() -> None:
    Selector.parse(f"{'k' * 63}={'v' * 128}")
    for text in (f"{'k' * 64}=v", f"k={'v' * 129}"):
        with pytest.raises(InvalidSelector, match="malformed term"):
            Selector.parse(text)


def test_parse_too_many_terms_are_refused() -> None:
    assert len(Selector.parse(",".join(f"k{i}" for i in range(32))).terms) == 32
    with pytest.raises(InvalidSelector) as error:
        Selector.parse(",".join(f"k{i}" for i in range(33)))
    assert error.value.message == "selector: too many terms (33); use at most 32"


@given(st.text(max_size=60))
def test_parse_random_text_gives_a_selector_or_invalid_selector(text: str) -> None:
    try:
        selector = Selector.parse(text)
    except InvalidSelector:
        return
    assert Selector.parse(str(selector)) == selector
