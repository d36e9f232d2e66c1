"""``payload=``: messages by JSON fields, equal by type and value on every engine."""

from __future__ import annotations

import contextlib
import decimal
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from queue_over_sql import UnsupportedByEngine
from tests.contract.queue_state import ARGUMENT_ERRORS, archived, finished, has_json_paths, payloads

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueError, QueueService

NOT_ON_OLD_H2 = (
    "H2 before 2.2.220 cannot look into JSON; "
    "test_an_engine_that_cannot_look_into_json_says_so proves that it says so"
)

ODD_TEXTS = [
    "",
    " ",
    "Zagreb",
    "zagreb",
    "Zagreb ",
    "Žágřeb",
    "Z\u0301agreb",
    "O'Brien",
    'the "best"',
    "100%",
    "100_",
    "back\\slash",
    "tab\tand\nline",
    "null",
    "true",
    "1",
    "{}",
    "$.a",
    "%s %(a)s :a ?",
    "😀",
    "x",
    "x\0",
    "x\0y",
    "\0",
    "\\u0000",
    "x\\u0000y",
    "\\\0",
    "\x01\x1f\x7f\b\f\r",
]
ODD_KEYS = [
    "two words",
    "with-dash",
    "država",
    "😀",
    "City",
    "city",
    "O'Brien",
    "100%",
    "%s",
    ":name",
    "?",
    "@",
    "$",
    "*",
    "**",
    "[0]",
    "a[0]",
    "#",
    "length",
    "size()",
    "last",
    "a,b",
    "{}",
    "tab\tkey",
    "line\nkey\r",
    "\x01\x1f\x7f\b\f",
]
PLAIN_VALUES: list[Any] = ["1", 1, 1.0, True, None, "true", "null", 0, False, 0.0, "", "1.0", 2]
NUMBERS = [2**53, 2**53 + 1, -(2**63), 2**63 - 1, 0.1, 0.5, -2.5, 1e-7, 1e22, 1000.0, 1000.5]

Story = tuple[list[Any], list[tuple[str, object, list[int]]]]
"""Payloads, and which of them, by their places, a path with a value finds."""

VALUES: dict[str, Story] = {
    "text is no number, true is no number, null is no text, and 1 is 1.0": (
        [*({"v": one} for one in PLAIN_VALUES), {}, {"v": {}}, {"v": []}, {"w": 1}],
        [
            ("v", "1", [0]),
            ("v", 1, [1, 2]),
            ("v", 1.0, [1, 2]),
            ("v", True, [3]),
            ("v", None, [4]),
            ("v", "true", [5]),
            ("v", "null", [6]),
            ("v", 0, [7, 9]),
            ("v", False, [8]),
            ("v", 0.0, [7, 9]),
            ("v", -0.0, [7, 9]),
            ("v", "", [10]),
            ("v", "1.0", [11]),
            ("v", "0", []),
            ("v", 1.5, []),
            ("v", -1, []),
        ],
    ),
    "large whole numbers, fractions and exponents, however JSON writes them": (
        [{"v": number} for number in NUMBERS],
        [
            *(("v", number, [place]) for place, number in enumerate(NUMBERS)),
            ("v", 1000, [9]),
            ("v", 0.1000001, []),
        ],
    ),
    "case, accents, blanks, quotes, wildcards, backslashes and markers of parameters": (
        [{"v": each} for each in ODD_TEXTS],
        [("v", each, [place]) for place, each in enumerate(ODD_TEXTS)],
    ),
    "a NUL character anywhere keeps no message from being found, nor from being searched past": (
        [
            {"v": "x", "other": "\0", "n": 1},
            {"\0": "x", "v": "x", "flag": True},
            {"v": ["\0"]},
            {"v\0": "x"},
            {"v": {"w": "\0\0", "x": None}},
            "\0",
        ],
        [
            ("v", "x", [0, 1]),
            ("n", 1, [0]),
            ("flag", True, [1]),
            ("v.0", "\x00", [2]),
            ("v.w", "\x00\x00", [4]),
            ("v.w", "", []),
            ("v.x", None, [4]),
            ("v.0", "", []),
        ],
    ),
    "a field that is not there equals nothing, not even null": (
        [{"a": None}, {}, {"a": {"b": None}}, {"b": None}, None, []],
        [("a", None, [0]), ("a.b", None, [2])],
    ),
}
PATHS: dict[str, Story] = {
    "through objects, and nowhere through anything else": (
        [
            {"a": {"b": {"c": 1}}},
            {"a": {"b": 1}},
            {"a": 1},
            {"a.b.c": 1},
            {"a": "b.c"},
            1,
            "a",
            None,
        ],
        [("a.b.c", 1, [0]), ("a.b", 1, [1]), ("a", 1, [2]), ("a.b.c.d", 1, [])],
    ),
    "digits count from nought in a list; they are no key, and no list is passed through": (
        [
            {"items": [{"sku": "x"}, {"sku": "y"}]},
            {"items": [{"sku": "y"}]},
            {"items": {"0": {"sku": "x"}}},
            {"items": {"sku": "x"}},
            ["p", ["q", "r"]],
            {"items": []},
        ],
        [
            ("items.0.sku", "x", [0]),
            ("items.1.sku", "y", [0]),
            ("items.sku", "x", [3]),
            ("items.2.sku", "x", []),
            ("0", "p", [4]),
            ("1.1", "r", [4]),
        ],
    ),
    "position nought of what is no list is nothing": (
        [{"a": "x"}, {"a": ["x"]}, "x"],
        [("a.0", "x", [1]), ("a", "x", [0]), ("0", "x", [])],
    ),
}


@pytest.fixture
def docs(queue: Queue, engine: Engine) -> Queue:
    """A queue whose engine looks into JSON."""
    if not has_json_paths(engine):
        pytest.skip(NOT_ON_OLD_H2)
    return queue


def found(queue: Queue, **fields: Any) -> list[Any]:
    """The payloads of the live messages whose fields are these; ``__`` stands for a dot."""
    selection = queue.messages(
        payload={path.replace("__", "."): value for path, value in fields.items()}
    )
    listed = payloads(selection.list())
    assert selection.count() == len(listed)
    return listed


def indexes(queue: Queue, path: str, value: object) -> list[int]:
    """The places, in the order of publishing, of the messages that match one field."""
    every = [message.id for message in queue.messages().list()]
    return [every.index(one.id) for one in queue.messages(payload={path: value}).list()]


def check(docs: Queue, stories: dict[str, Story]) -> None:
    """Each story is true of what it publishes."""
    for story, (published, expected) in stories.items():
        docs.publish_many(published)
        found_at = [(path, value, indexes(docs, path, value)) for path, value, _ in expected]
        assert expected == found_at, story
        docs.purge()


def test_values_are_equal_by_type_and_value(docs: Queue) -> None:
    """Texts, numbers, truth and null are never mistaken for each other, nor for a neighbour."""
    check(docs, VALUES)


def test_what_other_clients_store_breaks_no_search(docs: Queue, engine: Engine) -> None:
    """Escapes that are no text at all, as far as the table takes them for JSON."""
    stored = [
        r'{"v": "\ud800", "w": "x"}',
        r'{"\udc00": 1, "w": "\ud83d\ude00"}',
        r'{"w": "x", "v": "\ude00\ud83d"}',
        r'{"w": "\u0000"}',
        r'{"w": "\\ud800"}',
    ]
    docs.publish_many(["placeholder"] * len(stored))
    for message, content in zip(docs.messages().list(), stored, strict=True):
        change = text(f"UPDATE {docs.table.name} SET payload = CAST(:new AS JSON) WHERE id = :id")
        if engine.dialect.name != "postgresql":
            change = text(f"UPDATE {docs.table.name} SET payload = :new WHERE id = :id")
        # What the table refuses stays what it was.
        with contextlib.suppress(DBAPIError), engine.begin() as connection:
            connection.execute(change, {"new": content, "id": message.id})
    wanted = [("w", "x"), ("w", "\0"), ("w", "😀"), ("w", "\\ud800"), ("v", "x"), ("w", None)]
    counted = [docs.messages(payload={path: value}).count() for path, value in wanted]
    assert all(count <= most for count, most in zip(counted, (2, 1, 1, 1, 0, 0), strict=True)), (
        counted
    )
    assert 1 == counted[1]
    assert 1 == counted[3]
    with pytest.raises(ValueError, match="surrogate"):
        docs.messages(payload={"w": "\ud800"})


def test_a_number_beyond_64_bits_is_found_or_refused(docs: Queue) -> None:
    """Never with a bare error of the driver, and never mistaken for its neighbour's value."""
    docs.publish_many([{"v": 2**70}, {"v": 1}])
    try:
        assert [0] == indexes(docs, "v", 2**70)
    except ValueError as error:
        assert "v" in str(error)  # noqa: PT017 - either answer is a good one
    assert [1] == indexes(docs, "v", 1)


def test_paths_lead_through_objects_and_lists(docs: Queue) -> None:
    """By the names of fields and the positions in lists, to one value and to no other."""
    check(docs, PATHS)


def test_a_key_is_taken_as_it_is_written(docs: Queue) -> None:
    """No character of it means anything to an engine's path language."""
    count = len(ODD_KEYS)
    docs.publish_many({key: "x"} for key in ODD_KEYS)
    docs.publish_many({"a": {key: "x"}} for key in ODD_KEYS)
    docs.publish_many([{"a": ["x", "x"]}, ["x"], {"a": "x"}, "x"])
    for place, key in enumerate(ODD_KEYS):
        assert [place] == indexes(docs, key, "x"), key
        assert [count + place] == indexes(docs, f"a.{key}", "x"), key
        assert [] == indexes(docs, key, "y"), key


def test_a_key_that_begins_with_a_dash_is_found_or_refused(docs: Queue) -> None:
    """Never missed in silence, and never a position from the end of a list."""
    for key in ("-1", "-a"):
        docs.publish_many([{key: "x"}, {"a": {key: "x"}}, ["x"], {"a": ["x"]}])
        for path, place in ((key, 0), (f"a.{key}", 1)):
            try:
                assert [place] == indexes(docs, path, "x"), path
            except (ValueError, UnsupportedByEngine) as error:
                assert key in str(error)  # noqa: PT017 - MariaDB has no way to write such a path
        docs.purge()


def test_every_field_has_to_match(docs: Queue) -> None:
    """Several fields narrow the choice."""
    docs.publish_many(
        [
            {"company_id": 3345, "address": {"city": "Zagreb"}},
            {"company_id": 3345, "address": {"city": "Split"}},
            {"company_id": 3346, "address": {"city": "Zagreb"}},
        ]
    )
    assert [3345, 3346] == [one["company_id"] for one in found(docs, address__city="Zagreb")]
    assert [{"company_id": 3345, "address": {"city": "Zagreb"}}] == found(
        docs, company_id=3345, address__city="Zagreb"
    )
    assert [] == found(docs, company_id=3346, address__city="Split")


# ---------------------------------------------------------------- with all the rest


def test_fields_combine_with_every_other_filter(docs: Queue) -> None:
    """Status, key, kind, condition and pages."""
    for number in range(6):
        docs.publish({"n": number, "even": number % 2 == 0}, key=f"k{number}", kind="a")
    docs.publish({"n": 6, "even": True}, kind="b", delay=3600)
    even = {"even": True}
    assert [6] == [
        one["n"] for one in payloads(docs.messages(status="delayed", payload=even).list())
    ]
    assert 3 == docs.messages(kind="a", payload=even).count()
    assert 1 == docs.messages(key="k2", payload=even).count()
    assert 0 == docs.messages(key="k1", payload=even).count()
    last = docs.messages(payload=even, where=docs.table.c.message_key > "k2").first()
    assert last is not None
    assert {"n": 4, "even": True} == last.payload
    page = docs.messages(payload=even).list(limit=2)
    assert [0, 2] == [one.payload["n"] for one in page]
    rest = docs.messages(payload=even).list(after=page[-1].id)
    assert [4, 6] == [one.payload["n"] for one in rest]


def test_edits_reach_what_the_fields_choose(docs: Queue) -> None:
    """An operator holds one customer's messages, and removes another's; claimed ones are left."""
    docs.publish_many({"company_id": 1 + number % 3, "n": number} for number in range(9))
    (held_by_a_consumer,) = docs.consume()
    assert 3 == docs.messages(payload={"company_id": 2}).hold()
    removed = docs.messages(payload={"company_id": 1}).remove()
    assert 2 == removed
    assert 1 == removed.skipped
    assert 1 == docs.messages(payload={"n": 8}).prioritize(front=True)
    assert [8, 2, 5] == [one.payload["n"] for one in docs.consume(9)]
    held_by_a_consumer.ack()


def test_the_archive_is_searched_too(service: QueueService, engine: Engine) -> None:
    """Finished messages are found, requeued and removed by their fields."""
    if not has_json_paths(engine):
        pytest.skip(NOT_ON_OLD_H2)
    queue = service.create_queue("jobs", archive="all")
    queue.publish_many({"city": city, "n": n} for n, city in enumerate(["Split", "Zagreb"] * 2))
    finished(queue, "rejected", 2)
    finished(queue, "done", 2)
    archive = queue.archive
    assert [1, 3] == [
        one.payload["n"] for one in archive.messages(payload={"city": "Zagreb"}).list()
    ]
    assert 1 == archive.messages(status="rejected", payload={"city": "Zagreb"}).requeue()
    assert 2 == archive.messages(payload={"city": "Split"}).remove()
    assert [3] == [one.payload["n"] for one in archived(queue)]
    assert [1] == [one.payload["n"] for one in queue.consume(9)]


# ---------------------------------------------------------------- refused


REFUSED: list[tuple[str, object]] = [
    ("list", [1]),
    ("object", {"a": 1}),
    ("bytes", b"x"),
    ("day", date(2026, 1, 1)),
    ("decimal", decimal.Decimal("1.5")),
    ("", 1),
    ('qu"ote', 1),
    ("back\\slash", 1),
    ('a.qu"ote', 1),
]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses them")
def test_what_no_field_can_be_is_refused(queue: Queue) -> None:
    """The text names the path."""
    for path, value in REFUSED:
        for messages in (queue.messages, queue.archive.messages):
            try:
                messages(payload={path: value}).list()
            except ARGUMENT_ERRORS as error:
                assert path in str(error) or repr(path) in str(error)  # noqa: PT017
            else:
                pytest.fail(f"accepted: {path!r} = {value!r}")


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_only_json_has_fields(service: QueueService) -> None:
    """A queue of texts or bytes refuses the filter."""
    payload_types: list[Literal["text", "bytes"]] = ["text", "bytes"]
    for payload_type in payload_types:
        queue = service.create_queue(payload_type, payload=payload_type)
        for messages in (queue.messages, queue.archive.messages):
            with pytest.raises(ValueError, match=f"has '{payload_type}' payloads"):
                messages(payload={"a": 1}).list()


@pytest.mark.engines("h2")
def test_an_engine_that_cannot_look_into_json_says_so(queue: Queue, engine: Engine) -> None:
    """An old H2 is told which version can; a newer one finds the message."""
    queue.publish({"a": 1})
    if has_json_paths(engine):
        assert [0] == indexes(queue, "a", 1)
        return
    expected: type[QueueError] = UnsupportedByEngine
    for messages in (queue.messages, queue.archive.messages):
        with pytest.raises(expected, match=r"2\.2\.220"):
            messages(payload={"a": 1}).list()
    assert 1 == queue.messages().count()


def test_a_consumer_claims_by_fields_of_the_payload(queue: Queue, engine: Engine) -> None:
    """The oldest that match, with ``where`` too; equal values of other types are others."""
    if not has_json_paths(engine):
        with pytest.raises(UnsupportedByEngine):
            queue.consume(payload={"city": "x"})
        return
    for number, city in enumerate(["Zagreb", "Split", "Zagreb", True, 1]):
        queue.publish({"city": city, "number": number}, kind=str(number % 2))
    even = queue.table.c.kind == "0"
    for _ in range(2):
        assert [] == queue.consume(5, payload={"city": "zagreb"})
    assert [3] == [each.payload["number"] for each in queue.consume(5, payload={"city": True})]
    assert [4] == [each.payload["number"] for each in queue.consume(5, payload={"city": 1})]
    (first,) = queue.consume(payload={"city": "Zagreb"}, where=even)
    assert 0 == first.payload["number"]
    with pytest.raises(ValueError, match="path"):
        queue.consume(payload={"": 1})
