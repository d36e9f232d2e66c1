"""A payload that does not fit its kind here waits for a server where it fits."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import Publication
from tests.contract.payloads.kind_types import (
    EITHER_ORDER,
    NEWER_ORDER,
    ORDERS,
    Order,
    knowing,
    long_ago,
)
from tests.contract.queue_state import archived, counts, ids, live_rows, payloads, set_columns
from tests.contract.worker.running_worker import running
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService

NEW = {"total": 1.5}


@pytest.fixture
def older(make_service: MakeService) -> Queue:
    """The queue of a server with the older version of the type."""
    return knowing(make_service, ORDERS, archive="all")


@pytest.fixture
def newer(older: Queue, make_service: MakeService) -> Queue:
    """The same queue, of a server with the newer version."""
    assert "jobs" == older.name
    return knowing(make_service, NEWER_ORDER)


@pytest.fixture
def mixed(older: Queue, newer: Queue) -> list[int]:
    """Two orders of the older version around one of the newer; their ids."""
    return [
        older.publish(Order(id=1)).id,
        newer.publish(NEW, kind="Order").id,
        older.publish(Order(id=2)).id,
    ]


def only(queue: Queue) -> Message:
    """The only live message, as a list shows it."""
    (message,) = queue.messages().list()
    return message


def make_due(engine: Engine, queue: Queue, message_id: int) -> None:
    """Let the time pass until a message that was set aside is due again."""
    set_columns(engine, queue, message_id, available_at=1)


def let_its_time_pass(engine: Engine, queue: Queue, message_id: int) -> None:
    """As if a message had first been set aside a minute and more ago, and were due again."""
    minutes_ago = time.time() - 100
    headers = json.dumps({"unfit_since": minutes_ago})
    published_at = round((minutes_ago - 1) * 1_000_000)
    values = {"headers": headers, "published_at": published_at, "available_at": 1}
    set_columns(engine, queue, message_id, **values)


# -- set aside


def test_what_does_not_fit_is_set_aside_uncounted(
    older: Queue, newer: Queue, engine: Engine, mixed: list[int]
) -> None:
    """The others are delivered; it waits with the reason, and no attempt is used up.

    After its pause it is delivered to a server with the right version.
    """
    now = time.time()
    messages = older.consume(10)
    assert [Order(id=1), Order(id=2)] == payloads(messages)
    assert (0, 2, 0) == counts(older)
    assert 1 == older.stats().delayed
    older.ack(messages)
    aside = only(older)
    assert mixed[1] == aside.id
    assert 0 == aside.attempt
    assert NEW == aside.payload
    assert "Order" == aside.kind
    assert aside.last_error is not None
    assert "'Order'" in aside.last_error
    assert "id: Field required" in aside.last_error
    assert now - 60 < aside.headers["unfit_since"] < now + 60
    make_due(engine, older, mixed[1])
    (message,) = consume_exactly(newer, 1)
    assert NEW == message.payload
    assert 1 == message.attempt
    message.ack()
    assert 0 == newer.messages().count()


@pytest.mark.engines("sqlite")
def test_headers_of_its_own_are_kept(older: Queue, newer: Queue, engine: Engine) -> None:
    """The note is one header among the publisher's."""
    published = newer.publish(NEW, kind="Order", headers={"trace": "t"}, key="k")
    assert [] == older.consume()
    aside = only(older)
    assert {"trace", "unfit_since"} == set(aside.headers)
    assert "k" == aside.key
    make_due(engine, older, published.id)
    assert "t" == consume_exactly(newer, 1)[0].headers["trace"]


def test_a_mended_payload_is_due_now(older: Queue, newer: Queue) -> None:
    """Its note is gone, and other headers stay; not so if it is held or rescheduled."""
    ids_of = [newer.publish(NEW, kind="Order", headers={"own": n}).id for n in range(3)]
    assert [] == older.consume(10)
    by_id = newer.table.c.id
    newer.messages(where=by_id == ids_of[1]).hold()
    newer.messages(where=by_id == ids_of[2]).reschedule(delay=3600)
    for message_id in ids_of:
        assert 1 == older.edit(message_id, payload={"id": 7})
    assert [{"own": n} for n in range(3)] == [each.headers for each in older.messages().list()]
    assert {"ready": 1, "held": 1, "delayed": 1} == {
        name: older.messages(status=name).count() for name in ("ready", "held", "delayed")
    }
    (message,) = older.consume(10)
    assert (ids_of[0], Order(id=7)) == (message.id, message.payload)


def pause_of(message: Message) -> float:
    """How long it was set aside, in seconds by the database's clock."""
    assert message.available_at is not None
    assert message.last_attempt_at is not None
    return (message.available_at - message.last_attempt_at).total_seconds()


def test_the_pause_grows(older: Queue, newer: Queue, engine: Engine) -> None:
    """A second at first, half of the time that it waits later, and the beginning stays noted."""
    published = newer.publish(NEW, kind="Order")
    assert [] == older.consume()
    first = only(older)
    assert 1.0 == pytest.approx(pause_of(first), abs=0.01)
    since = first.headers["unfit_since"] - 100
    hour_before = round((since - 3600) * 1_000_000)
    header = json.dumps({"unfit_since": since})
    set_columns(engine, older, published.id, published_at=hour_before, headers=header)
    make_due(engine, older, published.id)

    def looked_again() -> bool:
        assert [] == older.consume()
        return older.stats().delayed == 1

    wait_until(looked_again)
    later = only(older)
    assert since == later.headers["unfit_since"]
    assert 50 <= pause_of(later) <= 110
    make_due(engine, older, published.id)
    assert 1 == consume_exactly(newer, 1)[0].attempt


def test_attempts_are_not_used_up(make_service: MakeService, engine: Engine) -> None:
    """A queue of one attempt keeps it, however often it was looked at."""
    older = knowing(make_service, ORDERS, max_attempts=1)
    newer = knowing(make_service, NEWER_ORDER)
    published = newer.publish(NEW, kind="Order")
    for _ in range(5):
        make_due(engine, older, published.id)
        assert [] == older.consume()
    assert 0 == len(archived(older))
    make_due(engine, older, published.id)
    (message,) = consume_exactly(newer, 1)
    assert NEW == message.payload
    assert 1 == message.attempt


@pytest.mark.engines("sqlite")
def test_an_earlier_failure_still_counts(older: Queue, newer: Queue, engine: Engine) -> None:
    """Only the look that did not fit is uncounted."""
    published = newer.publish(NEW, kind="Order")
    newer.consume()[0].nack("busy", delay=0)
    make_due(engine, older, published.id)
    assert [] == older.consume()
    assert 1 == only(older).attempt
    make_due(engine, older, published.id)
    assert 2 == consume_exactly(newer, 1)[0].attempt


# -- every way to consume


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("mixed")
def test_exchange_goes_on_with_the_next(older: Queue) -> None:
    """It is set aside in passing."""
    (first,) = older.consume()
    found = older.exchange(first, 2) or consume_exactly(older, 1)
    assert [Order(id=2)] == payloads(found)
    assert 1 == older.stats().delayed


def test_take_does_not_remove_it(
    older: Queue, newer: Queue, engine: Engine, mixed: list[int]
) -> None:
    """The caller's commit ends the others; a rollback leaves all as it was."""
    before = live_rows(engine, older)
    with engine.connect() as connection:
        taken = older.take(3, connection=connection)
        assert [Order(id=1), Order(id=2)] == payloads(taken)
        connection.rollback()
    assert before == live_rows(engine, older)
    with engine.begin() as connection:
        older.take(3, connection=connection)
    assert [mixed[1]] == ids(older.messages().list())
    assert 2 == len(archived(older))
    make_due(engine, older, mixed[1])
    (message,) = consume_exactly(newer, 1)
    assert NEW == message.payload
    assert 1 == message.attempt


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("mixed")
def test_stream_passes_it_by(older: Queue) -> None:
    """The stream neither stops at it nor yields it."""
    seen = []
    for message in older.stream(wait=0.05):
        seen.append(message.payload)
        message.ack()
    assert [Order(id=1), Order(id=2)] == seen


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("mixed")
def test_a_worker_passes_it_by(make_service: MakeService, newer: Queue) -> None:
    """Its handler sees what fits, and the other server gets the rest."""
    service = make_service(reaper_interval=0.1)
    service.create_queue("jobs", kinds=ORDERS)
    worker = service.worker(concurrency=1, poll_interval=(0.005, 0.05))
    seen: list[Any] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.append(message.payload)

    with running(worker):
        wait_until(lambda: len(seen) == 2)
        wait_until(lambda: newer.stats().delayed == 1)
    assert [Order(id=1), Order(id=2)] == seen
    assert [NEW] == payloads(consume_exactly(newer, 1))


@pytest.mark.engines("sqlite")
def test_a_condition_changes_nothing(older: Queue, newer: Queue) -> None:
    """What matches and does not fit is set aside as well."""
    newer.publish(NEW, kind="Order")
    assert [] == older.consume(5, where=older.table.c.kind == "Order")
    assert 1 == older.stats().delayed


@pytest.mark.engines("sqlite")
def test_lists_show_it_as_plain_json(older: Queue, newer: Queue) -> None:
    """Looking at it changes nothing."""
    newer.publish(NEW, kind="Order")
    assert [NEW] == payloads(older.messages().list())
    assert {} == only(older).headers
    assert 1 == older.stats().ready


# -- the limit


def test_after_its_time_it_is_a_dead_letter(make_service: MakeService, engine: Engine) -> None:
    """With the reason, and as it was published; sent again it has its whole time anew."""
    older = knowing(make_service, ORDERS, kind_timeout=60)
    newer = knowing(make_service, NEWER_ORDER)
    published = newer.publish(NEW, kind="Order", key="k")
    assert [] == older.consume()
    assert [] == archived(older)
    let_its_time_pass(engine, older, published.id)
    wait_until(lambda: older.consume() == [] and older.stats().failed == 1)
    (dead,) = archived(older)
    assert "failed" == dead.outcome
    assert NEW == dead.payload
    assert "k" == dead.key
    assert "Order" == dead.kind
    assert dead.last_error is not None
    assert "id: Field required" in dead.last_error
    assert 0 == older.messages().count()
    assert 1 == older.archive.messages().requeue()
    assert [] == older.consume()
    assert 1 == older.stats().delayed
    assert 0 == older.stats().failed
    make_due(engine, older, only(older).id)
    assert [NEW] == payloads(consume_exactly(newer, 1))


def test_take_dead_letters_it_after_its_time(make_service: MakeService, engine: Engine) -> None:
    """Those who only take do not leave it behind for ever."""
    older = knowing(make_service, ORDERS, kind_timeout=60)
    published = knowing(make_service, NEWER_ORDER).publish(NEW, kind="Order")

    def taken() -> bool:
        with engine.begin() as connection:
            assert [] == older.take(connection=connection)
        return older.stats().failed == 1

    assert not taken()
    let_its_time_pass(engine, older, published.id)
    wait_until(taken)
    assert "id: Field required" in (archived(older)[0].last_error or "")


@pytest.mark.engines("sqlite")
def test_without_an_archive_it_is_counted(make_service: MakeService, engine: Engine) -> None:
    """A dead message that is not kept is a discarded one."""
    older = knowing(make_service, ORDERS, kind_timeout=60, archive="none")
    published = knowing(make_service, NEWER_ORDER).publish(NEW, kind="Order")
    assert [] == older.consume()
    let_its_time_pass(engine, older, published.id)
    wait_until(lambda: older.consume() == [] and older.stats().discarded == 1)
    assert 0 == older.stats().live
    assert 0 == older.stats().archived


@pytest.mark.engines("sqlite")
def test_the_time_begins_where_it_first_did_not_fit(make_service: MakeService) -> None:
    """A backlog that waited long for any server is not buried at its first look."""
    older = knowing(make_service, ORDERS, kind_timeout=60)
    knowing(make_service, NEWER_ORDER).publish(NEW, kind="Order", at=long_ago())
    assert [] == older.consume()
    assert 1 == older.stats().delayed
    assert 0 == older.stats().failed


# -- what else may not fit


@pytest.mark.engines("sqlite")
def test_each_server_judges_by_its_own_type(
    older: Queue, newer: Queue, make_service: MakeService, engine: Engine
) -> None:
    """What a stricter type set aside a looser one takes, and a server without kinds, too."""
    for other in (knowing(make_service, EITHER_ORDER), make_service().queue("jobs")):
        published = newer.publish(NEW, kind="Order")
        assert [] == older.consume()
        make_due(engine, older, published.id)
        (message,) = consume_exactly(other, 1)
        assert NEW == message.payload
        message.ack()


@pytest.mark.engines("sqlite")
def test_a_note_of_the_publishers_is_not_taken_for_a_time(older: Queue, newer: Queue) -> None:
    """Nonsense does no harm; and who passes old headers on does not bury a new message."""
    notes: list[Any] = ["yesterday", None, [1], True, 1e308, -1e308, 1e30, 0, -1, -5]
    for note in notes:
        newer.publish(NEW, kind="Order", headers={"unfit_since": note})
        older.publish(Order(id=1), headers={"unfit_since": note})
        assert [Order(id=1)] == payloads(older.consume(5)), note
        stats = older.stats()
        assert 1 == stats.delayed, note
        assert 1 == stats.claimed, note
        assert 0 == stats.archived, note
        older.purge(claimed=True)


@pytest.mark.engines("sqlite", "h2")
def test_headers_that_another_client_wrote_stop_nobody(
    older: Queue, newer: Queue, engine: Engine
) -> None:
    """What JSON has no words for, where the database does not check: the rest is delivered."""
    for number, text in enumerate(("NaN", "Infinity"), start=1):
        published = newer.publish(NEW, kind="Order")
        set_columns(engine, newer, published.id, headers=f'{{"unfit_since": {text}}}')
        older.publish(Order(id=number))
        assert [Order(id=number)] == payloads(older.consume(5))
        assert number == older.stats().claimed


@pytest.mark.default_on("sqlite", "postgresql")
def test_headers_of_another_client_are_kept(older: Queue, newer: Queue, engine: Engine) -> None:
    """It is deferred as any other, and does not hide what follows; its headers come as they were.

    An edit of the payload leaves them, too, even if nobody can read them.
    """
    stored = (r'{"t":"caf\ud83d"}', '{"t":1e999}')
    for headers in stored:
        published = newer.publish(NEW, kind="Order")
        set_columns(engine, newer, published.id, headers=headers)
        older.publish(Order(id=1))
        with engine.begin() as connection:
            assert [Order(id=1)] == payloads(older.take(9, connection=connection))
    aside = older.messages().list()
    assert ["caf\ud83d", float("inf")] == [each.headers["t"] for each in aside]
    assert [1, 1] == [older.edit(each.id, payload={"id": 2}) for each in aside]
    assert [{"t": "caf\ud83d"}, {"t": float("inf")}] == [m.headers for m in older.consume(2)]
    last = older.publish(Order(id=1)).id
    set_columns(engine, older, last, headers='{"t":' + "[" * 5_000 + "]" * 5_000 + "}")
    assert 1 == older.edit(last, payload={"id": 2})


@pytest.mark.engines("sqlite")
def test_one_that_does_not_fit_is_not_taken_for_an_empty_queue(
    older: Queue, newer: Queue, engine: Engine
) -> None:
    """A claim of one goes on to the next message, whichever verb it was."""
    for number in range(4):
        newer.publish(NEW, kind="Order")
        older.publish(Order(id=number))
    (first,) = older.consume()
    (second,) = older.exchange(first)
    assert [Order(id=0), Order(id=1)] == payloads([first, second])
    with older.receive() as third:
        assert third is not None
        assert Order(id=2) == third.payload
    with engine.begin() as connection:
        assert [Order(id=3)] == payloads(older.take(connection=connection))


@pytest.mark.default_on("sqlite", "postgresql")
def test_many_that_do_not_fit_hide_none(older: Queue, newer: Queue) -> None:
    """A batch of nothing else is passed by, and what fits behind it is found."""
    newer.publish_many([Publication(NEW, kind="Order")] * 50)
    older.publish(Order(id=1))
    found: list[Any] = []

    def looked() -> bool:
        found.extend(payloads(older.consume(10)))
        return bool(found)

    wait_until(looked)
    assert [Order(id=1)] == found
    assert 50 == len(consume_exactly(newer, 50, timeout=20))
