"""Every accepted payload comes back equal: tested with generated values."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queue_over_sql.errors import PayloadInvalid, PayloadTooLarge
from queue_over_sql.payloads.codec import decode, encode
from queue_over_sql.values.texts import printable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(JSON)
def test_json_comes_back_equal_or_is_refused(value: Any) -> None:
    """NaN, lone surrogates and keys that are not strings are refused, nothing is bent."""
    try:
        stored = encode("json", value, 10_000)
    except (PayloadInvalid, PayloadTooLarge):
        return
    assert isinstance(stored, str)
    stored.encode()
    back = decode("json", stored)
    assert value == back
    assert repr(value) == repr(back)
    json.loads(stored)


@given(st.text(), st.booleans())
def test_text_comes_back_equal_or_is_refused(value: str, nul: bool) -> None:
    """Only what the engine cannot hold is refused."""
    try:
        stored = encode("text", value, 10_000, nul=nul)
    except PayloadInvalid:
        surrogate = any("\ud800" <= character <= "\udfff" for character in value)
        assert surrogate or ("\0" in value and not nul)
        return
    assert value == decode("text", stored)


@given(st.binary(max_size=100))
def test_bytes_come_back_equal(value: bytes) -> None:
    """Binary is stored as it is."""
    assert value == decode("bytes", encode("bytes", value, 100))


@given(st.text())
def test_any_reason_can_be_stored(reason: str) -> None:
    """No error message can keep its message from being settled."""
    kept = printable(reason)
    assert kept is not None
    assert "\0" not in kept
    kept.encode()
