"""A queue fed by the dead letters of others (``dead_letter_queue``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, text

from queue_over_sql import QueueError, QueueNotFound, QueueSchemaMismatch, QueueSettings
from queue_over_sql.testing.waiting import wait_until
from tests.contract.queue_state import payloads

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


def origins(queue: Queue) -> dict[Any, Any]:
    """Where the messages of a queue died, by payload."""
    return {each.payload: each.headers["dead_letter"] for each in queue.messages().list()}


def test_each_dead_letter_comes_to_the_other_queue(service: QueueService) -> None:
    """However it died: with its payload and headers, its origin, and a record in the archive."""
    dead = service.create_queue("dead", priorities=2)
    jobs = service.create_queue(
        "jobs", dead_letter_queue="dead", archive="all", max_attempts=1, group_limit=5
    )
    assert "dead" == jobs.settings.dead_letter_queue
    jobs.publish("failed", key="k", headers={"from": "me"}, group="a")
    for payload in ("rejected", "done", "back"):
        jobs.publish(payload)
    jobs.publish("expired", expires=0.001)
    (late,) = jobs.publish_many(["cancelled"])
    wait_until(lambda: service.reap().dead_lettered or "expired" in origins(dead))
    claimed = {message.payload: message for message in jobs.consume(9)}
    claimed["failed"].nack("no")
    claimed["rejected"].reject("never")
    claimed["done"].ack()
    claimed["back"].release()
    assert jobs.cancel(late.id, "by us")
    said = origins(dead)
    assert {"failed", "rejected", "expired", "cancelled"} == set(said)
    (failed,) = jobs.archive.messages(status="failed").list()
    expected = {"queue": "jobs", "id": failed.id, "outcome": "failed", "key": "k"}
    assert {**expected, "reason": "no", "attempts": 1} == said["failed"]
    assert ("expired", 0) == (said["expired"]["outcome"], said["expired"]["attempts"])
    assert "by us" in said["cancelled"]["reason"]
    copy: Message = next(m for m in dead.messages().list() if m.payload == "failed")
    assert ("me", None, 0) == (copy.headers["from"], copy.key, copy.attempt)
    # From there it starts a new life: the key and the group are the handler's choice.
    with_origin = next(each for each in dead.consume(9) if each.payload == "failed")
    jobs.publish(with_origin.payload, key="k")
    with_origin.ack()
    assert {"back", "failed"} == {each.payload for each in jobs.messages().list()}


def test_the_dead_letters_of_the_dead_come_too(
    make_service: MakeService, service: QueueService
) -> None:
    """Those whose last attempt ended with their consumer, by any reaper."""
    dead = service.create_queue("dead")
    service.create_queue("jobs", dead_letter_queue="dead", max_attempts=1).publish("x")
    victim = make_service()
    victim.queue("jobs").consume(lease=0.05)
    wait_until(lambda: service.reap().dead_lettered or dead.messages().count())
    assert {"queue": "jobs", "attempts": 1}.items() <= origins(dead)["x"].items()


def test_it_is_one_transaction_with_the_end(service: QueueService, engine: Engine) -> None:
    """A caller's rollback takes it back, too; its commit has both."""
    dead = service.create_queue("dead")
    jobs = service.create_queue("jobs", dead_letter_queue="dead")
    jobs.publish("x")
    for commits in (False, True):
        (message,) = jobs.consume()
        with engine.connect() as connection:
            message.reject("no", connection=connection)
            if commits:
                connection.commit()
            else:
                connection.rollback()
        assert (commits, commits) == (dead.messages().count(), jobs.archive.messages().count())
        if not commits:
            jobs.held(message.token).release()


def test_no_message_goes_round(service: QueueService) -> None:
    """What came from dead letters stays in the archive, whatever queues name each other."""
    first, second = service.create_queue("first"), service.create_queue("second")
    service.create_queue("first", dead_letter_queue="second")
    service.create_queue("second", dead_letter_queue="first")
    first.publish("x")
    first.reject(first.consume(), "no")
    second.reject(second.consume(), "no")
    assert (0, 0) == (first.messages().count(), second.messages().count())
    assert (1, 1) == (first.archive.messages().count(), second.archive.messages().count())


def test_what_was_sent_again_by_hand_comes_again(service: QueueService) -> None:
    """It keeps the headers of the dead letter, and dies again."""
    dead = service.create_queue("dead")
    jobs = service.create_queue("jobs", dead_letter_queue="dead")
    jobs.publish("x")
    for reason in ("first", "second"):
        jobs.reject(jobs.consume(), reason)
        [letter] = dead.consume()
        assert reason == letter.headers["dead_letter"]["reason"]
        jobs.publish(letter.payload, headers=letter.headers)
        dead.ack([letter])


@pytest.mark.parametrize("trouble", ["dropped", "refuses"])
def test_a_dead_letter_is_never_lost(
    service: QueueService, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    """If the other queue cannot have it, it stays in the archive, and the log says so.

    The other settlements of the transaction hold.
    """
    columns = [Column("n", Integer, nullable=False)] if trouble == "refuses" else []
    service.create_queue("dead", columns=columns)
    jobs = service.create_queue("jobs", dead_letter_queue="dead", max_attempts=1)
    if trouble == "dropped":
        service.drop_queue("dead")
    jobs.publish_many(["x", "y"])
    jobs.nack(jobs.consume(2), error="no")
    assert ["x", "y"] == sorted(payloads(jobs.archive.messages().list()))
    assert "stay in its archive" in caplog.text


@pytest.mark.engines("sqlite")
def test_what_cannot_be_is_refused(service: QueueService) -> None:
    """A queue that is not there, the queue itself, other payloads, and no archive."""
    service.create_queue("texts", payload="text")
    service.create_queue("other")
    jobs = service.create_queue("jobs")
    for create in ("jobs", "new"):
        with pytest.raises(QueueNotFound):
            service.create_queue(create, dead_letter_queue="missing")
        with pytest.raises(QueueSchemaMismatch, match="'text' payloads"):
            service.create_queue(create, dead_letter_queue="texts")
        with pytest.raises(ValueError, match="needs an archive"):
            service.create_queue(create, dead_letter_queue="other", archive="none")
    with pytest.raises(ValueError, match="its own dead_letter_queue"):
        service.create_queue("jobs", dead_letter_queue="jobs")
    for wrong, error in ((1, TypeError), ("", ValueError)):
        with pytest.raises(error, match="dead_letter_queue must be"):
            service.create_queue("jobs", dead_letter_queue=wrong)  # type: ignore[arg-type]
    service.create_queue("new", dead_letter_queue="jobs")
    assert service.create_queue("new", dead_letter_queue=None).settings.dead_letter_queue is None
    assert ["jobs", "new", "other", "texts"] == [queue.name for queue in service.queues()]
    assert jobs.settings.dead_letter_queue is None


@pytest.mark.engines("sqlite")
def test_several_are_created_in_any_order(service: QueueService) -> None:
    """The receivers first; two that exist may feed each other."""
    chain = {"a": "My dead", "My dead": "last", "last": None}
    queues = {name: QueueSettings(dead_letter_queue=to) for name, to in chain.items()}
    for create in (queues, dict(reversed(queues.items()))):
        created = service.create_queues(create)
        assert [*create] == [*created]
        assert chain == {name: created[name].settings.dead_letter_queue for name in chain}
        for name in created:
            service.drop_queue(name)
    both = {"a": QueueSettings(dead_letter_queue="b"), "b": QueueSettings(dead_letter_queue="a")}
    service.create_queues(dict.fromkeys(both, QueueSettings()))
    created = service.create_queues(both)
    assert ("b", "a") == tuple(created[name].settings.dead_letter_queue for name in both)


def run_sql(engine: Engine, statement: str) -> None:
    """Do what another client of the database does."""
    with engine.begin() as connection:
        connection.execute(text(statement))


@pytest.mark.engines("sqlite")
def test_an_undone_transaction_is_told(service: QueueService, engine: Engine) -> None:
    """Whoever settles learns that the database undid all of it: nothing commits by halves."""
    service.create_queue("dead")
    jobs = service.create_queue("jobs", dead_letter_queue="dead", max_attempts=1)
    run_sql(engine, "CREATE TABLE effects (name TEXT)")
    run_sql(
        engine,
        "CREATE TRIGGER full BEFORE INSERT ON queue_dead BEGIN SELECT RAISE(ROLLBACK, 'full'); END",
    )
    jobs.publish("x")
    (message,) = jobs.consume()

    def end() -> None:
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO effects VALUES ('half')"))
            message.reject("no", connection=connection)

    with pytest.raises(QueueError, match="full"):
        end()
    with pytest.raises(QueueError, match="full"):
        message.nack("no")
    with engine.connect() as connection:
        assert 0 == connection.execute(text("SELECT count(*) FROM effects")).scalar_one()
    assert (1, 0) == (jobs.messages().count(), jobs.archive.messages().count())
    run_sql(engine, "DROP TRIGGER full")
    message.nack("no")
    assert {"x"} == set(origins(service.queue("dead")))


@pytest.mark.engines("sqlite")
def test_a_held_message_sends_no_other_one(service: QueueService, engine: Engine) -> None:
    """If the archive refuses it because of its id, the earlier one of this id stays there."""
    dead = service.create_queue("dead")
    jobs = service.create_queue("jobs", dead_letter_queue="dead")
    jobs.publish("old")
    jobs.reject(jobs.consume(), "no")
    (old,) = jobs.archive.messages().list()
    jobs.publish_many(["new", "other"])
    run_sql(engine, f"UPDATE queue_jobs SET id = {old.id} WHERE payload LIKE '%new%'")
    jobs.reject(jobs.consume(2), "no")
    assert ["new"] == payloads(jobs.messages().list())
    assert ["old", "other"] == sorted(payloads(dead.messages().list()))


UNREADABLE = {
    "a list": "[1]",
    "no JSON": "nojson",
    "deep": '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
}
ODD = '{"a":"\\ud800"}'


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("how", ["nack", "cancel", "expire", "receive"])
def test_headers_that_nobody_can_read_stop_nothing(
    service: QueueService, engine: Engine, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Such dead letters stay in the archive; the others, odd ones too, come to the other queue."""
    dead = service.create_queue("dead")
    jobs = service.create_queue("jobs", dead_letter_queue="dead", max_attempts=1)
    expires = 0.001 if how == "expire" else None
    sent = [jobs.publish(payload, expires=expires) for payload in (*UNREADABLE, "odd", "good")]
    claimed = jobs.consume(9) if how == "nack" else []
    with engine.begin() as connection:
        change = text("UPDATE queue_jobs SET headers = :headers WHERE id = :id")
        for each, headers in zip(sent, (*UNREADABLE.values(), ODD), strict=False):
            connection.execute(change, {"headers": headers, "id": each.id})
    if how == "nack":
        jobs.nack(claimed, error="no")
    elif how == "cancel":
        assert all(jobs.cancel(each.id) for each in sent)
    elif how == "receive":
        jobs.reject(jobs.consume(9), "no")
    else:
        wait_until(lambda: service.reap().dead_lettered or jobs.archive.messages().count())
    assert 0 == jobs.messages().count()
    with engine.connect() as connection:
        kept = connection.execute(text("SELECT count(*) FROM queue_jobs_archive")).scalar_one()
    assert len(sent) == kept
    odd, good = dead.messages().list()
    assert ["odd", "good"] == payloads([odd, good])
    assert "\ud800" == odd.headers["a"]
    assert "stay in its archive" in caplog.text


@pytest.mark.engines("sqlite")
def test_one_refused_copy_keeps_no_other_away(
    make_service: MakeService,
    service: QueueService,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log names the refused one. A queue whose table is gone has none, without an error."""
    columns = [Column("n", Integer)]
    dead = service.create_queue("dead", columns=columns)
    jobs = service.create_queue("jobs", dead_letter_queue="dead", max_attempts=1)
    run_sql(
        engine,
        "CREATE TRIGGER picky BEFORE INSERT ON queue_dead WHEN NEW.payload LIKE '%bad%' "
        "BEGIN SELECT RAISE(ABORT, 'too bad'); END",
    )
    (bad, *_) = jobs.publish_many(["bad", *"abcdefg"])
    jobs.nack(jobs.consume(8), error="no")
    assert [*"abcdefg"] == sorted(payloads(dead.messages().list()))
    assert f"{bad.id} of queue jobs" in caplog.text
    assert 1 == caplog.text.count("too bad")
    run_sql(engine, "DROP TABLE queue_dead")
    late = make_service().queue("jobs")
    late.publish("x")
    late.nack(late.consume(), error="no")
    assert 9 == jobs.archive.messages().count()
