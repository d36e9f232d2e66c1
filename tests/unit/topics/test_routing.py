"""Routing: AMQP's wildcards compared with a second implementation, and payload filters."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queue_over_sql.topics.routing import (
    check_filter,
    check_routing_text,
    filter_of,
    filter_text,
    pattern_fits,
    payload_fits,
)
from tests.refusals import refused

FEW_WORDS = st.lists(st.sampled_from(["a", "b", "", "*", "#", "ab"]), max_size=6).map(".".join)


def slowly(pattern: list[str], key: list[str]) -> bool:
    """The definition, word for word, by trying everything: the oracle."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(slowly(pattern[1:], key[taken:]) for taken in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and slowly(pattern[1:], key[1:])


def words(text: str) -> list[str]:
    """No text, no word; a dot stands between two words, even between empty ones."""
    return [] if text == "" else re.split(r"\.", text)


@given(FEW_WORDS, FEW_WORDS)
def test_the_matcher_agrees_with_the_definition(pattern: str, key: str) -> None:
    """Any mixture of words, wildcards and empty words, in the pattern and in the key."""
    assert slowly(words(pattern), words(key)) == pattern_fits(pattern, key)


@given(st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1).map(".".join))
def test_a_hash_alone_takes_everything(key: str) -> None:
    """With any number of hashes beside it."""
    assert pattern_fits("#", key)
    assert pattern_fits("#.#", key)
    assert pattern_fits(f"#.{key}.#", key)


EXAMPLES = [
    ("orders.*.paid", "orders.eu.paid", True),
    ("orders.*.paid", "orders.paid", False),
    ("orders.*.paid", "orders.eu.hr.paid", False),
    ("orders.#", "orders", True),
    ("orders.#", "orders.eu.paid", True),
    ("orders.#", "order", False),
    ("orders.#.paid", "orders.paid", True),
    ("#.paid", "paid", True),
    ("#.paid", "orders.eu.unpaid", False),
    ("*", "", False),
    ("#", "", True),
    ("", "", True),
    ("", "orders", False),
    ("*.#", "", False),
    ("*.#", "orders", True),
    ("*.*", "orders.", True),
    ("*", ".", False),
    ("orders", "Orders", False),
    ("orders.*", "orders.*", True),
    ("orders.eu", "orders.*", False),
    ("orders.eu", "orders.#", False),
    ("ord*", "orders", False),
    ("ord#", "orders", False),
    ("ord*", "ord*", True),
    ("države.*", "države.hrvatska", True),
]


def test_amqp_by_examples() -> None:
    """Wildcards are whole words of the pattern; in the key and within words they mean nothing."""
    assert EXAMPLES == [(pattern, key, pattern_fits(pattern, key)) for pattern, key, _ in EXAMPLES]


def test_many_wildcards_are_decided_at_once() -> None:
    """The longest pattern of hashes on the longest key, which would keep a backtracker for ever."""
    pattern, key = ".".join(["#", "a"] * 63 + ["b"]), ".".join("a" * 128)
    assert not pattern_fits(pattern, key)


def test_texts_up_to_255_bytes_pass() -> None:
    """Bytes of UTF-8 count, not characters. A refusal names the argument."""
    for text in ("", "é" * 127, "x" * 255, "a b", "\n"):
        assert text == check_routing_text("routing_key", text)
    wrong: dict[type[Exception], list[Any]] = {
        ValueError: ["x" * 256, "é" * 128, "a\0b", "\ud800"],
        TypeError: [b"orders", None],
    }
    for error, texts in wrong.items():
        for text in texts:
            with refused(text, error, match="pattern"):
                check_routing_text("pattern", text)


DOCUMENT = {
    "country": "HR",
    "total": 10,
    "rate": 0.5,
    "paid": True,
    "note": None,
    "address": {"city": "Zagreb", "0": "zero"},
    "items": [{"sku": "a"}, {"sku": "b"}, [1, 2]],
    "$": "dollar",
}


FILTERS: list[tuple[dict[str, Any], bool]] = [
    ({"country": "HR"}, True),
    ({"country": "hr"}, False),
    ({"country": "HR", "total": 10}, True),
    ({"country": "HR", "total": 11}, False),
    ({"total": 10.0}, True),
    ({"total": "10"}, False),
    ({"rate": 0.5}, True),
    ({"paid": True}, True),
    ({"paid": 1}, False),
    ({"paid": False}, False),
    ({"note": None}, True),
    ({"missing": None}, False),
    ({"note.deeper": None}, False),
    ({"address.city": "Zagreb"}, True),
    ({"address.0": "zero"}, False),
    ({"address": "Zagreb"}, False),
    ({"country.0": "H"}, False),
    ({"items.1.sku": "b"}, True),
    ({"items.3.sku": "b"}, False),
    ({"items.2.1": 2}, True),
    ({"items.sku": "a"}, False),
    ({"$": "dollar"}, True),
]


def test_filters_by_examples() -> None:
    """Type and value count; null is there; positions are those of lists."""
    assert FILTERS == [(where, payload_fits(check_filter(where), DOCUMENT)) for where, _ in FILTERS]


def test_what_has_no_fields_fits_no_filter() -> None:
    """A payload need not be an object."""
    payloads: list[Any] = [None, 1, "HR", [], ["country"], True]
    assert [] == [payload for payload in payloads if payload_fits({"country": "HR"}, payload)]


@given(
    st.dictionaries(
        st.text("ab ž$#7", min_size=1).filter(lambda path: not path.isdigit()),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text("aé\0\n😀"),
        max_size=4,
    )
)
def test_a_filter_comes_back_from_its_text(where: dict[str, Any]) -> None:
    """What the table holds is the filter that was given, and fits the payload that it describes."""
    back = filter_of(filter_text(check_filter(where)))
    assert (where or None) == back
    assert payload_fits(where, json.loads(json.dumps(where)))


def test_no_filters() -> None:
    """The message names the argument."""
    values: list[Any] = [[1], {}, float("nan"), b"x"]
    names = ["a..b", "", "$.a", 'a"b']
    wrong: dict[type[Exception], list[Any]] = {
        TypeError: ["country=HR", ["country"], {1: "HR"}],
        ValueError: [*({name: 1} for name in names), *({"a": value} for value in values)],
    }
    for error, filters in wrong.items():
        for where in filters:
            with refused(where, error, match="where"):
                check_filter(where)
