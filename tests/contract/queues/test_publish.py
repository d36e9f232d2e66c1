"""Publishing: what is stored, when it is due, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import (
    DuplicateKey,
    PayloadInvalid,
    PayloadTooLarge,
    Publication,
)
from tests.contract.queue_state import ARGUMENT_ERRORS, payloads
from tests.refusals import refused

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService

pytestmark = pytest.mark.driver_decides

of_one_statement = pytest.mark.threads("the statement is that of the tests on both faces")
in_python = pytest.mark.threads("Python decides it")


@of_one_statement
def test_the_longest_key_kind_and_headers_are_stored_whole(queue: Queue) -> None:
    """200 characters of any script, 100 characters, 64 KiB."""
    headers = {"h": "x" * (64 * 1024 - len('{"h":""}'))}
    queue.publish("x", key="к" * 200, kind="k" * 100, headers=headers)
    (message,) = queue.consume()
    assert "к" * 200 == message.key
    assert "k" * 100 == message.kind
    assert headers == message.headers


@of_one_statement
def test_at_sets_the_instant(queue: Queue) -> None:
    """To the microsecond; what was due long ago goes first, what is due in 2100 stays."""
    at = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    queue.publish("far", at=at)
    (listed,) = queue.messages().list()
    assert at == listed.scheduled_at
    assert at == listed.available_at
    queue.publish("now")
    queue.publish("due long ago", at=datetime.now(UTC) - timedelta(hours=1))
    assert ["due long ago", "now"] == payloads(queue.consume(3))


@of_one_statement
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
    assert "k" == low.kind
    assert {"h": 1} == low.headers
    assert 2 == low.max_attempts
    assert high.lease_expires_at is not None
    assert high.claimed_at is not None
    assert timedelta(seconds=7) == high.lease_expires_at - high.claimed_at
    assert 2 == queue.stats().delayed


def test_load_takes_the_same_items_in_order(queue: Queue) -> None:
    """A bulk load of any iterable keeps order and options, across its batches."""
    items = [Publication(n, key=f"k{n}") if n % 2 else n for n in range(25)]
    assert 25 == queue.load(iter(items), batch_size=10)
    messages = queue.consume(100)
    assert payloads(messages) == list(range(25))
    assert [None, "k1", None, "k3"] == [message.key for message in messages[:4]]
    with pytest.raises(DuplicateKey):
        queue.publish("again", key="k1")


@in_python
@pytest.mark.engines("sqlite")
def test_an_impossible_argument_is_refused(service: QueueService) -> None:
    """The caller's mistake is a ValueError or TypeError, and nothing is stored."""
    impossible: list[dict[str, Any]] = [
        {"at": datetime(2100, 1, 1)},  # noqa: DTZ001
        {"priority": 3},
        {"priority": -1},
        {"priority": "high"},
        {"max_attempts": 0},
        {"lease": 0},
        {"on_conflict": "explode", "key": "k"},
        {"no_such_column": 1},
        {"key": "k" * 201},
        {"kind": "k" * 101},
    ]
    queue = service.create_queue("levels", priorities=3)
    for options in impossible:
        with refused(options, *ARGUMENT_ERRORS):
            queue.publish(1, **options)
    assert 0 == queue.stats().live
    queue.publish(1, priority=2)


@in_python
@pytest.mark.engines("sqlite")
def test_headers_are_json_of_64_kib_or_refused(queue: Queue) -> None:
    """Headers obey the rules of a JSON payload, and have a limit of their own."""
    too_much = {"h": "x" * (64 * 1024 - len('{"h":""}') + 1)}
    wrong: list[Any] = [{"n": float("nan")}, {1: "a"}, {"s": "\ud800"}, {"o": object}]
    for headers in wrong:
        with refused(headers, PayloadInvalid):
            queue.publish(1, headers=headers)
    with pytest.raises(PayloadTooLarge, match=r"^The headers take .* publish a reference[.]$"):
        queue.publish(1, headers=too_much)
    with pytest.raises(PayloadInvalid, match="JSON has no NaN and no infinity: publish None"):
        queue.publish(1, headers={"n": [float("inf")]})
    assert 0 == queue.stats().live


@in_python
@pytest.mark.engines("sqlite")
def test_a_batch_with_a_bad_item_publishes_nothing(queue: Queue) -> None:
    """A batch is published whole or not at all; an empty one is no error."""
    for bad in (float("inf"), Publication("x", priority=5)):
        with refused(bad, PayloadInvalid, *ARGUMENT_ERRORS):
            queue.publish_many(["good", bad, "also good"])
    assert 0 == queue.stats().ready
    assert [] == queue.publish_many([])
    assert 0 == queue.load([])


@in_python
@pytest.mark.engines("sqlite")
def test_load_reports_its_progress(queue: Queue) -> None:
    """The progress callback is called while loading."""
    calls: list[tuple[object, ...]] = []
    queue.load(range(9), batch_size=3, progress=lambda *seen: calls.append(seen))
    assert [(3,), (6,), (9,)] == calls


def test_a_publish_says_when(service: QueueService, engine_name: str) -> None:
    """By the database's clock, as it is stored; only an INSERT of MySQL cannot return it."""
    jobs = service.create_queue("jobs")
    single = [jobs.publish("x"), jobs.publish("y", key="k"), jobs.publish("z", delay=60)]
    many = jobs.publish_many(["a", Publication("b", delay=60)])
    again = jobs.publish_many(
        [Publication("c", key="l"), Publication("y", key="k")], on_conflict="skip"
    )
    stored = {message.id: message.published_at for message in jobs.messages().list()}
    assert [stored[each.id] for each in many] == [each.published_at for each in many]
    # In a batch with a taken key, some engines insert one by one.
    alone = [*single, again[0]]
    known = [None if engine_name == "mysql" else stored[each.id] for each in alone]
    assert known == [each.published_at for each in alone]
    assert again[1].published_at is None
