"""``payload=``: messages found by fields of their JSON, equal by type and value on every engine."""

from __future__ import annotations

import decimal
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import UnsupportedByEngine
from tests.contract.editing import finished, has_json_paths
from tests.contract.looking import ARGUMENT_ERRORS, archived, payloads

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
]
PLAIN_VALUES: list[Any] = ["1", 1, 1.0, True, None, "true", "null", 0, False, 0.0, "", "1.0", 2]


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


# ---------------------------------------------------------------- values


def test_equal_by_type_and_value(docs: Queue) -> None:
    """Text is no number, true is no number, null is no text, and 1 is 1.0."""
    docs.publish_many([*({"v": one} for one in PLAIN_VALUES), {}, {"v": {}}, {"v": []}, {"w": 1}])
    expected: list[tuple[object, list[int]]] = [
        ("1", [0]),
        (1, [1, 2]),
        (1.0, [1, 2]),
        (True, [3]),
        (None, [4]),
        ("true", [5]),
        ("null", [6]),
        (0, [7, 9]),
        (False, [8]),
        (0.0, [7, 9]),
        (-0.0, [7, 9]),
        ("", [10]),
        ("1.0", [11]),
        ("0", []),
        (1.5, []),
        (-1, []),
    ]
    assert expected == [(value, indexes(docs, "v", value)) for value, _ in expected]


def test_numbers_are_equal_exactly(docs: Queue) -> None:
    """Large whole numbers, fractions and exponents, however JSON writes them."""
    numbers = [2**53, 2**53 + 1, -(2**63), 2**63 - 1, 0.1, 0.5, -2.5, 1e-7, 1e22, 1000.0, 1000.5]
    docs.publish_many({"v": number} for number in numbers)
    assert [[place] for place in range(len(numbers))] == [
        indexes(docs, "v", number) for number in numbers
    ]
    assert [9] == indexes(docs, "v", 1000)
    assert [] == indexes(docs, "v", 0.1000001)


def test_a_number_beyond_64_bits_is_found_or_refused(docs: Queue) -> None:
    """Never with a bare error of the driver, and never mistaken for its neighbour's value."""
    docs.publish_many([{"v": 2**70}, {"v": 1}])
    try:
        assert [0] == indexes(docs, "v", 2**70)
    except ValueError as error:
        assert "v" in str(error)  # noqa: PT017 - either answer is a good one
    assert [1] == indexes(docs, "v", 1)


def test_texts_are_equal_by_each_character(docs: Queue) -> None:
    """Case, accents, blanks, quotes, wildcards, backslashes and markers of parameters count."""
    docs.publish_many({"v": text} for text in ODD_TEXTS)
    assert [[place] for place in range(len(ODD_TEXTS))] == [
        indexes(docs, "v", text) for text in ODD_TEXTS
    ]


def test_null_is_not_missing(docs: Queue) -> None:
    """A field that is not there equals nothing, not even null."""
    docs.publish_many([{"a": None}, {}, {"a": {"b": None}}, {"b": None}, None, []])
    assert [0] == indexes(docs, "a", None)
    assert [2] == indexes(docs, "a.b", None)


# ---------------------------------------------------------------- paths


def test_a_key_is_taken_as_it_is_written(docs: Queue) -> None:
    """No character of it means anything to an engine's path language."""
    count = len(ODD_KEYS)
    docs.publish_many({key: "x"} for key in ODD_KEYS)
    docs.publish_many({"a": {key: "x"}} for key in ODD_KEYS)
    docs.publish_many([{"a": ["x", "x"]}, ["x"], {"a": "x"}, "x"])
    for place, key in enumerate(ODD_KEYS):
        assert (key, [place]) == (key, indexes(docs, key, "x"))
        assert (key, [count + place]) == (key, indexes(docs, f"a.{key}", "x"))
        assert (key, []) == (key, indexes(docs, key, "y"))


@pytest.mark.parametrize("key", ["-1", "-a"])
def test_a_key_that_begins_with_a_dash_is_found_or_refused(docs: Queue, key: str) -> None:
    """Never missed in silence, and never a position from the end of a list."""
    docs.publish_many([{key: "x"}, {"a": {key: "x"}}, ["x"], {"a": ["x"]}])
    for path, place in ((key, 0), (f"a.{key}", 1)):
        try:
            assert [place] == indexes(docs, path, "x")
        except (ValueError, UnsupportedByEngine) as error:
            assert key in str(error)  # noqa: PT017 - MariaDB has no way to write such a path


def test_fields_within_fields(docs: Queue) -> None:
    """A path leads through objects, and nowhere through anything else."""
    docs.publish_many(
        [
            {"a": {"b": {"c": 1}}},
            {"a": {"b": 1}},
            {"a": 1},
            {"a.b.c": 1},
            {"a": "b.c"},
            1,
            "a",
            None,
        ]
    )
    assert [0] == indexes(docs, "a.b.c", 1)
    assert [1] == indexes(docs, "a.b", 1)
    assert [2] == indexes(docs, "a", 1)
    assert [] == indexes(docs, "a.b.c.d", 1)


def test_positions_in_lists(docs: Queue) -> None:
    """Digits count from nought in a list; they are no key, and no list is passed through."""
    docs.publish_many(
        [
            {"items": [{"sku": "x"}, {"sku": "y"}]},
            {"items": [{"sku": "y"}]},
            {"items": {"0": {"sku": "x"}}},
            {"items": {"sku": "x"}},
            ["p", ["q", "r"]],
            {"items": []},
        ]
    )
    assert [0] == indexes(docs, "items.0.sku", "x")
    assert [0] == indexes(docs, "items.1.sku", "y")
    assert [3] == indexes(docs, "items.sku", "x")
    assert [] == indexes(docs, "items.2.sku", "x")
    assert [4] == indexes(docs, "0", "p")
    assert [4] == indexes(docs, "1.1", "r")


def test_a_value_is_not_a_list_of_itself(docs: Queue) -> None:
    """Position nought of what is no list is nothing."""
    docs.publish_many([{"a": "x"}, {"a": ["x"]}, "x"])
    assert [1] == indexes(docs, "a.0", "x")
    assert [0] == indexes(docs, "a", "x")
    assert [] == indexes(docs, "0", "x")


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
    assert (2, 1) == (removed, removed.skipped)
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


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("list", [1]),
        ("object", {"a": 1}),
        ("bytes", b"x"),
        ("day", date(2026, 1, 1)),
        ("decimal", decimal.Decimal("1.5")),
        ("", 1),
        ('qu"ote', 1),
        ("back\\slash", 1),
        ('a.qu"ote', 1),
    ],
)
def test_what_no_field_can_be_is_refused(queue: Queue, path: str, value: object) -> None:
    """The text names the path."""
    with pytest.raises(ARGUMENT_ERRORS) as caught:
        queue.messages(payload={path: value}).list()
    assert path in str(caught.value) or repr(path) in str(caught.value)
    with pytest.raises(ARGUMENT_ERRORS):
        queue.archive.messages(payload={path: value}).list()


@pytest.mark.parametrize("payload_type", ["text", "bytes"])
def test_only_json_has_fields(service: QueueService, payload_type: str) -> None:
    """A queue of texts or bytes refuses the filter."""
    queue = service.create_queue("jobs", payload=payload_type)  # type: ignore[arg-type]
    for messages in (queue.messages, queue.archive.messages):
        with pytest.raises(ValueError, match=payload_type):
            messages(payload={"a": 1}).list()


def test_an_engine_that_cannot_look_into_json_says_so(queue: Queue, engine: Engine) -> None:
    """An old H2 is told which version can; every other engine finds the message."""
    queue.publish({"a": 1})
    if has_json_paths(engine):
        assert [0] == indexes(queue, "a", 1)
        return
    expected: type[QueueError] = UnsupportedByEngine
    for messages in (queue.messages, queue.archive.messages):
        with pytest.raises(expected, match=r"2\.2\.220"):
            messages(payload={"a": 1}).list()
    assert 1 == queue.messages().count()
