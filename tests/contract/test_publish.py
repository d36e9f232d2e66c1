"""Publishing: what is stored, when it is due, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import (
    DuplicateKey,
    PayloadInvalid,
    PayloadTooLarge,
    Publication,
)
from tests.contract.looking import ARGUMENT_ERRORS, payloads
from tests.contract.waiting import consume_exactly

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService


def test_a_published_message_comes_back_as_given(queue: Queue) -> None:
    """Every option of publish is seen by the consumer."""
    before = datetime.now(UTC)
    published = queue.publish(
        {"to": "ann"}, key="k1", kind="email", headers={"trace": "t1"}, max_attempts=9
    )
    (message,) = queue.consume()
    assert (published.id, "created") == (message.id, published.outcome)
    assert {"to": "ann"} == message.payload
    assert ("k1", "email", {"trace": "t1"}) == (message.key, message.kind, message.headers)
    assert (0, 1, 9) == (message.priority, message.attempt, message.max_attempts)
    assert abs(message.published_at - before) < timedelta(minutes=1)
    assert message.published_at.utcoffset() == timedelta(0)
    assert message.scheduled_at == message.published_at


def test_what_is_not_given_is_empty(queue: Queue) -> None:
    """A bare publish leaves key, kind, headers and error empty."""
    queue.publish("bare")
    (message,) = queue.consume()
    assert (message.key, message.kind, message.last_error) == (None, None, None)
    assert not message.headers


def test_ids_rise_in_publish_order(queue: Queue) -> None:
    """The id is the publish order."""
    first, second = queue.publish(1), queue.publish(2)
    third, fourth = queue.publish_many([3, 4])
    assert first.id < second.id < third.id < fourth.id


@pytest.mark.parametrize("delay", [60, 60.0, timedelta(minutes=1)])
def test_a_delayed_message_is_not_due_yet(queue: Queue, delay: float | timedelta) -> None:
    """A delay in seconds or as timedelta keeps the message back."""
    queue.publish("later", delay=delay)
    assert queue.consume() == []
    assert (0, 1) == (queue.stats().ready, queue.stats().delayed)
    listed = queue.messages().list()[0]
    assert listed.scheduled_at - listed.published_at == timedelta(minutes=1)


def test_a_delayed_message_comes_when_due(queue: Queue) -> None:
    """Once due it is delivered, in the order of the due times."""
    queue.publish("second", delay=1.0)
    queue.publish("first", delay=0.7)
    assert queue.consume(2) == []
    assert payloads(consume_exactly(queue, 2)) == ["first", "second"]


def test_at_sets_the_instant(queue: Queue) -> None:
    """An aware instant of any zone is kept to the microsecond."""
    at = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    queue.publish("far", at=at)
    listed = queue.messages().list()[0]
    assert at == listed.scheduled_at
    assert at == listed.available_at
    assert queue.consume() == []


def test_an_instant_in_the_past_goes_first(queue: Queue) -> None:
    """A back-dated message takes its place by its due time."""
    queue.publish("now")
    queue.publish("due long ago", at=datetime.now(UTC) - timedelta(hours=1))
    assert payloads(queue.consume(2)) == ["due long ago", "now"]


@pytest.mark.parametrize(
    "options",
    [
        {"at": datetime(2100, 1, 1)},  # noqa: DTZ001
        {"priority": 1},
        {"priority": -1},
        {"priority": "high"},
        {"max_attempts": 0},
        {"lease": 0},
        {"on_conflict": "explode", "key": "k"},
        {"no_such_column": 1},
        {"key": "k" * 201},
        {"kind": "k" * 101},
    ],
    ids=str,
)
def test_an_impossible_argument_is_refused(queue: Queue, options: dict[str, object]) -> None:
    """The caller's mistake is a ValueError or TypeError, and nothing is stored."""
    with pytest.raises(ARGUMENT_ERRORS):
        queue.publish("x", **options)  # type: ignore[arg-type]
    assert queue.stats().ready == 0


def test_priorities_bound_the_levels(service: QueueService) -> None:
    """A queue with n priorities takes 0 to n-1."""
    queue = service.create_queue("levels", priorities=3)
    for level in range(3):
        queue.publish(level, priority=level)
    with pytest.raises(ARGUMENT_ERRORS):
        queue.publish("over", priority=3)
    assert payloads(queue.consume(5)) == [0, 1, 2]


@pytest.mark.parametrize("length", [1, 100])
def test_keys_and_kinds_fit_their_columns(queue: Queue, length: int) -> None:
    """The longest key and kind are stored whole."""
    queue.publish("x", key="к" * 2 * length, kind="k" * length)
    (message,) = queue.consume()
    assert (message.key, message.kind) == ("к" * 2 * length, "k" * length)


def test_headers_have_their_own_limit(queue: Queue) -> None:
    """64 KiB of headers are taken, one byte more is not."""
    frame = len('{"h":""}')
    queue.publish("fits", headers={"h": "x" * (64 * 1024 - frame)})
    with pytest.raises(PayloadTooLarge):
        queue.publish("too much", headers={"h": "x" * (64 * 1024 - frame + 1)})
    assert payloads(queue.consume(2)) == ["fits"]


@pytest.mark.parametrize(
    "headers", [{"n": float("nan")}, {1: "a"}, {"s": "\ud800"}, {"o": object}], ids=ascii
)
def test_headers_are_json_or_refused(queue: Queue, headers: dict[str, object]) -> None:
    """Headers obey the rules of a JSON payload."""
    with pytest.raises(PayloadInvalid):
        queue.publish("x", headers=headers)
    assert queue.stats().ready == 0


def test_publish_many_answers_in_order(queue: Queue) -> None:
    """Payloads and Publications mix, and the answers stand in the order of the items."""
    published = queue.publish_many(["plain", Publication("keyed", key="k"), {"a": 1}])
    assert ["created"] * 3 == [one.outcome for one in published]
    messages = queue.consume(10)
    assert [one.id for one in published] == [message.id for message in messages]
    assert payloads(messages) == ["plain", "keyed", {"a": 1}]
    assert [message.key for message in messages] == [None, "k", None]


def test_a_publication_takes_the_options_of_publish(service: QueueService) -> None:
    """What publish can say of one message, a Publication can say in a batch."""
    queue = service.create_queue("levels", priorities=2)
    at = datetime(2100, 1, 1, tzinfo=UTC)
    queue.publish_many(
        [
            Publication("late", at=at),
            Publication("low", priority=1, kind="k", headers={"h": 1}, max_attempts=2),
            Publication("delayed", delay=60),
            Publication("high", lease=7),
        ]
    )
    high, low = queue.consume(5, lease=None)
    assert ["high", "low"] == payloads([high, low])
    assert ("k", {"h": 1}, 2) == (low.kind, low.headers, low.max_attempts)
    assert high.lease_expires_at is not None
    assert high.claimed_at is not None
    assert timedelta(seconds=7) == high.lease_expires_at - high.claimed_at
    assert queue.stats().delayed == 2


def test_publish_many_of_nothing_is_nothing(queue: Queue) -> None:
    """An empty batch is no error."""
    assert queue.publish_many([]) == []
    assert queue.load([]) == 0


@pytest.mark.parametrize("bad", [float("inf"), Publication("x", priority=5)])
def test_a_batch_with_a_bad_item_publishes_nothing(queue: Queue, bad: object) -> None:
    """A batch is published whole or not at all."""
    with pytest.raises((PayloadInvalid, *ARGUMENT_ERRORS)):
        queue.publish_many(["good", bad, "also good"])
    assert queue.stats().ready == 0


def test_load_takes_the_same_items_in_order(queue: Queue) -> None:
    """A bulk load of any iterable keeps order and options, across its batches."""
    items = [Publication(n, key=f"k{n}") if n % 2 else n for n in range(25)]
    assert queue.load(iter(items), batch_size=10) == 25
    messages = queue.consume(100)
    assert payloads(messages) == list(range(25))
    assert [message.key for message in messages[:4]] == [None, "k1", None, "k3"]
    with pytest.raises(DuplicateKey):
        queue.publish("again", key="k1")


def test_load_reports_its_progress(queue: Queue) -> None:
    """The progress callback is called while loading."""
    calls: list[tuple[object, ...]] = []
    queue.load(range(9), batch_size=3, progress=lambda *seen: calls.append(seen))
    assert calls
