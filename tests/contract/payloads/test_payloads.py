"""Payloads: accepted ones come back equal, others are refused with a clear error."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import PayloadInvalid, PayloadTooLarge
from tests.refusals import refused

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService

pytestmark = pytest.mark.driver_decides

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

endless: list[Any] = []
endless.append(endless)

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
    endless,
]

TEXTS = ["", " ", "plain", "emoji 🐘", "a\r\nb\n", "trail  ", "'\"\\%s:x?", "\x01\x7f\u2028\uffff"]

BLOBS = [b"", b"\x00", bytes(range(256)), b"\\x41", b"\xff\xfe" * 100, "é".encode()]


def sent_and_received(queue: Queue, payload: object) -> Any:
    """What a consumer gets for ``payload``."""
    queue.publish(payload)
    (message,) = queue.consume()
    message.ack()
    return message.payload


def loaded_and_received(queue: Queue, values: list[Any]) -> list[Any]:
    """What consumers get for payloads that were loaded in bulk."""
    queue.load(values)
    messages = queue.consume(len(values))
    queue.ack(messages)
    return [message.payload for message in messages]


def ordered(value: Any) -> Any:
    """The value with its types and key order made part of equality."""
    if isinstance(value, dict):
        return "dict", [(key, ordered(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return "list", [ordered(inner) for inner in value]
    return type(value).__name__, value


def test_json_comes_back_equal(queue: Queue) -> None:
    """Values, types and the order of keys survive the database, one by one and in bulk."""
    for payload in JSON_VALUES:
        assert ordered(sent_and_received(queue, payload)) == ordered(payload)
    for payload, received in zip(JSON_VALUES, loaded_and_received(queue, JSON_VALUES), strict=True):
        assert ordered(received) == ordered(payload)


def test_text_and_bytes_come_back_equal(service: QueueService) -> None:
    """Nothing is trimmed, converted or taken for a delimiter of the bulk format."""
    texts = service.create_queue("texts", payload="text")
    blobs = service.create_queue("blobs", payload="bytes")
    assert TEXTS == [sent_and_received(texts, text) for text in TEXTS]
    assert BLOBS == [sent_and_received(blobs, blob) for blob in BLOBS]
    assert TEXTS == loaded_and_received(texts, TEXTS)
    received = loaded_and_received(blobs, BLOBS)
    assert BLOBS == received
    assert {bytes} == {type(blob) for blob in received}


@pytest.mark.threads("the dialect decides it")
def test_text_with_nul_is_equal_or_refused(service: QueueService) -> None:
    """Not every engine stores NUL in text: it is never cut off silently."""
    queue = service.create_queue("texts", payload="text")
    text = "before\x00after"
    try:
        received = sent_and_received(queue, text)
    except PayloadInvalid:
        assert 0 == queue.stats().ready
        return
    assert text == received


def test_one_mebibyte_fits(service: QueueService) -> None:
    """The default limit is not above what an engine stores."""
    largest: dict[Any, Any] = {"json": "x" * (MIB - 2), "text": "x" * MIB, "bytes": b"\xff" * MIB}
    for payload_type, payload in largest.items():
        queue = service.create_queue(f"large_{payload_type}", payload=payload_type)
        assert payload == sent_and_received(queue, payload), payload_type


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_what_json_cannot_hold_is_refused(queue: Queue) -> None:
    """It is refused at publish, alone and in a batch, and nothing is stored."""
    for value in REFUSED_JSON:
        with refused(value, PayloadInvalid):
            queue.publish(value)
        with refused(["good", value], PayloadInvalid):
            queue.publish_many(["good", value])
    assert 0 == queue.stats().ready


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_payload_of_another_type_is_refused(service: QueueService) -> None:
    """A queue takes its own payload type only, and never converts; JSON has no tuple."""
    wrong: dict[Any, list[Any]] = {
        "text": [b"bytes", {"a": 1}, "\ud800"],
        "bytes": ["text", 5],
        "json": [(1, 2), {"t": (1,)}],
    }
    for payload_type, payloads in wrong.items():
        queue = service.create_queue(f"of_{payload_type}", payload=payload_type)
        for value in payloads:
            with refused(value, PayloadInvalid):
                queue.publish(value)
        assert 0 == queue.stats().ready


LIMITS: dict[str, tuple[dict[str, Any], object, object]] = {
    "json": ({}, "x" * (MIB - 2), "x" * (MIB - 1)),
    "text": ({"payload": "text"}, "x" * MIB, "x" * (MIB + 1)),
    "bytes": ({"payload": "bytes"}, b"\xff" * MIB, b"\xff" * (MIB + 1)),
    "utf8": ({"max_payload_bytes": 10}, "éééé", "ééééa"),
    "compact": ({"max_payload_bytes": len('{"a":[1,2]}')}, {"a": [1, 2]}, {"a": [1, 20]}),
}


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_one_byte_more_than_the_limit_is_refused(service: QueueService) -> None:
    """The limit is exact, and counts the bytes of what is stored: UTF-8 and compact JSON."""
    for name, (settings, fits, too_much) in LIMITS.items():
        queue = service.create_queue(name, **settings)
        assert fits == sent_and_received(queue, fits), name
        with refused(name, PayloadTooLarge):
            queue.publish(too_much)
        with refused((name, "load"), PayloadTooLarge):
            queue.load([too_much])
        assert 0 == queue.stats().ready
