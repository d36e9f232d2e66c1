"""Payloads: what is accepted comes back equal, the rest is refused with a clear error."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import PayloadInvalid, PayloadTooLarge

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService

MIB = 1_048_576

JSON_VALUES: list[Any] = [
    None,
    True,
    0,
    "",
    [],
    {},
    "plain",
    "NUL \x00 inside",
    {"NUL \x00 key": "\x00"},
    "emoji 🐘👩‍👩‍👧 and ß, 漢字, \u202e",
    "line\r\nbreak\ttab \\ back \\u0041 'quotes' \" % %s :name ? {}",
    "\x01\x1f\x7f\u2028\ufeff\uffff",
    {"zebra": 1, "apple": 2, "mango": {"b": 1, "a": 2}},
    {"aa": 1, "b": 2, "a": 3, "": 4},
    [1, [2, [3, [4, {"deep": [None, False]}]]]],
    2**53 + 1,
    2**70,
    -(2**64),
    0.1,
    1e308,
    5e-324,
    1e22,
    -1.5,
    {"float": 1.0, "int": 1},
    " leading and trailing ",
    "2026-01-01T00:00:00",
    "null",
    "é" * 5_000,
]

REFUSED_JSON: list[Any] = [
    float("nan"),
    float("inf"),
    -float("inf"),
    {"deep": [1, {"n": float("nan")}]},
    "\ud800",
    ["\udfff tail"],
    {"\ud83d": 1},
    {1: "a"},
    {"deep": {None: 1}},
    {True: 1},
    {("a", "b"): 1},
    object,
    {"set": {1}},
    b"bytes",
    Decimal("1.5"),
]

TEXTS = ["", " ", "plain", "emoji 🐘", "a\r\nb\n", "trail  ", "'\"\\%s:x?", "\x01\x7f\u2028\uffff"]

BLOBS = [b"", b"\x00", bytes(range(256)), b"\\x41", b"\xff\xfe" * 100, "é".encode()]


def sent_and_received(queue: Queue, payload: object) -> Any:
    """What a consumer gets for ``payload``."""
    queue.publish(payload)
    (message,) = queue.consume()
    return message.payload


def ordered(value: Any) -> Any:
    """The value with its types and key order made part of equality."""
    if isinstance(value, dict):
        return "dict", [(key, ordered(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return "list", [ordered(inner) for inner in value]
    return type(value).__name__, value


@pytest.mark.parametrize("payload", JSON_VALUES, ids=lambda value: ascii(value)[:30])
def test_json_comes_back_equal(queue: Queue, payload: object) -> None:
    """Values, types and the order of keys survive the database."""
    assert ordered(sent_and_received(queue, payload)) == ordered(payload)


@pytest.mark.parametrize("payload", REFUSED_JSON, ids=lambda value: ascii(value)[:30])
def test_what_json_cannot_hold_is_refused(queue: Queue, payload: object) -> None:
    """It is refused at publish, and nothing is stored."""
    with pytest.raises(PayloadInvalid):
        queue.publish(payload)
    with pytest.raises(PayloadInvalid):
        queue.publish_many(["good", payload])
    assert queue.stats().ready == 0


def test_a_json_value_that_holds_itself_is_refused(queue: Queue) -> None:
    """An endless value is an error, not a crash."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PayloadInvalid):
        queue.publish(endless)


@pytest.mark.parametrize("payload", [(1, 2), {"t": (1,)}], ids=str)
def test_a_tuple_is_equal_or_refused(queue: Queue, payload: object) -> None:
    """JSON has no tuple: a list must not silently take its place."""
    try:
        received = sent_and_received(queue, payload)
    except PayloadInvalid:
        return
    assert payload == received


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_text_comes_back_equal(service: QueueService, text: str) -> None:
    """A text queue neither trims nor converts."""
    assert text == sent_and_received(service.create_queue("texts", payload="text"), text)


def test_text_with_nul_is_equal_or_refused(service: QueueService) -> None:
    """Not every engine stores NUL in text: it is never cut off silently."""
    queue = service.create_queue("texts", payload="text")
    text = "before\x00after"
    try:
        received = sent_and_received(queue, text)
    except PayloadInvalid:
        assert queue.stats().ready == 0
        return
    assert text == received


@pytest.mark.parametrize("blob", BLOBS, ids=lambda blob: repr(blob)[:20])
def test_bytes_come_back_equal(service: QueueService, blob: bytes) -> None:
    """A bytes queue stores any byte."""
    received = sent_and_received(service.create_queue("blobs", payload="bytes"), blob)
    assert (bytes, blob) == (type(received), received)


@pytest.mark.parametrize(
    ("payload_type", "payload"),
    [("text", b"bytes"), ("text", {"a": 1}), ("text", "\ud800"), ("bytes", "text"), ("bytes", 5)],
)
def test_a_payload_of_another_type_is_refused(
    service: QueueService, payload_type: str, payload: object
) -> None:
    """A queue takes its own payload type only, and never converts."""
    queue = service.create_queue("typed", payload=payload_type)  # type: ignore[arg-type]
    with pytest.raises((PayloadInvalid, TypeError)):
        queue.publish(payload)
    assert queue.stats().ready == 0


def test_load_keeps_hostile_payloads_too(queue: Queue) -> None:
    """The bulk path encodes exactly as publish does."""
    queue.load(JSON_VALUES)
    received = [message.payload for message in queue.consume(len(JSON_VALUES))]
    assert [ordered(value) for value in received] == [ordered(value) for value in JSON_VALUES]


def test_load_keeps_hostile_bytes_too(service: QueueService) -> None:
    """Delimiters and escapes of a bulk format do not leak into the payload."""
    queue = service.create_queue("blobs", payload="bytes")
    queue.load(BLOBS)
    assert [message.payload for message in queue.consume(len(BLOBS))] == BLOBS


@pytest.mark.parametrize(
    ("payload_type", "fits", "too_much"),
    [
        ("json", "x" * (MIB - 2), "x" * (MIB - 1)),
        ("text", "x" * MIB, "x" * (MIB + 1)),
        ("bytes", b"\xff" * MIB, b"\xff" * (MIB + 1)),
    ],
    ids=["json", "text", "bytes"],
)
def test_one_mebibyte_fits_and_one_byte_more_does_not(
    service: QueueService, payload_type: str, fits: object, too_much: object
) -> None:
    """The default limit is exact for every payload type."""
    queue = service.create_queue("large", payload=payload_type)  # type: ignore[arg-type]
    assert fits == sent_and_received(queue, fits)
    with pytest.raises(PayloadTooLarge):
        queue.publish(too_much)
    with pytest.raises(PayloadTooLarge):
        queue.load([too_much])
    assert queue.stats().ready == 0


def test_the_limit_counts_bytes_of_utf8(service: QueueService) -> None:
    """A letter of two bytes counts two."""
    queue = service.create_queue("small", max_payload_bytes=10)
    assert sent_and_received(queue, "éééé") == "éééé"
    with pytest.raises(PayloadTooLarge):
        queue.publish("ééééa")


def test_the_limit_counts_compact_json(service: QueueService) -> None:
    """Blanks between the elements are not counted."""
    queue = service.create_queue("small", max_payload_bytes=len('{"a":[1,2]}'))
    assert sent_and_received(queue, {"a": [1, 2]}) == {"a": [1, 2]}
    with pytest.raises(PayloadTooLarge):
        queue.publish({"a": [1, 20]})
