"""Replies: fenced by the claim, sent once, in the caller's transaction, or reported as lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, text
from sqlalchemy.orm import Session

from queue_over_sql import (
    ClaimLost,
    ConsumerExpired,
    PayloadInvalid,
    PublishOutcome,
    QueueNotFound,
    ReplyQueueGone,
    RequestTimeout,
)
from tests.contract.queue_state import add_effect, counts, effect_count, payloads
from tests.contract.request_reply.asking_and_answering import (
    LONGEST_WAIT,
    answering,
    ask,
    temporary,
)
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from concurrent.futures import Future

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


@pytest.fixture
def asker(make_service: MakeService, queue: Queue) -> QueueService:
    """A service of its own that asks."""
    assert "jobs" == queue.name
    return make_service()


def claimed_request(
    asker: QueueService, queue: Queue, payload: Any = "x"
) -> tuple[Future[Message], Message]:
    """A request that waits, and its message as the replier holds it."""
    asking = ask(asker.queue("jobs"), payload)
    [message] = consume_exactly(queue, 1)
    return asking, message


@pytest.mark.default_on("sqlite", "postgresql")
def test_the_first_reply_stands(asker: QueueService, queue: Queue, service: QueueService) -> None:
    """A handler that replies twice, as after a redelivery, has answered once."""
    with answering(queue, lambda m: m.payload):
        asker.queue("jobs").request("x", timeout=LONGEST_WAIT)
    [name] = temporary(service)
    # Nobody waits for this one, so that its reply stays where it is.
    queue.publish("x", headers={"reply_to": name, "correlation_id": "c"})
    [message] = queue.consume()
    first = message.reply("first")
    message.release()
    [again] = consume_exactly(queue, 1)
    second = again.reply("second")
    assert PublishOutcome.CREATED == first.outcome
    assert PublishOutcome.SKIPPED == second.outcome
    assert first.id == second.id
    assert ["first"] == payloads(service.queue(name).messages().list())
    again.ack()


def test_a_lost_claim_gives_no_reply(asker: QueueService, queue: Queue) -> None:
    """Who holds the request no more may not answer it; who holds it now may."""
    asking, old = claimed_request(asker, queue)
    old.release()
    [new] = consume_exactly(queue, 1)
    with pytest.raises(ClaimLost) as caught:
        old.reply("from the dead")
    assert [old] == caught.value.messages
    new.reply("alive")
    assert "alive" == asking.result(LONGEST_WAIT).payload
    new.ack()
    with pytest.raises(ClaimLost):
        new.reply("after the ack")


@pytest.mark.engines("sqlite")
def test_an_expired_consumer_gives_no_reply(
    asker: QueueService, queue: Queue, service: QueueService
) -> None:
    """It was taken for dead, so it fences itself."""
    asking, message = claimed_request(asker, queue)
    identity = service._parts.consumer.identity()
    identity.deadline = float("-inf")
    with pytest.raises(ConsumerExpired):
        message.reply("from the dead")
    assert not asking.done()


@pytest.mark.engines("sqlite")
def test_a_listed_message_gives_no_reply(asker: QueueService, queue: Queue) -> None:
    """It was looked at, not claimed."""
    asking = ask(asker.queue("jobs"), "x")
    wait_until(lambda: queue.messages().count() == 1)
    listed = queue.messages().first()
    assert listed is not None
    assert listed.reply_to is not None
    with pytest.raises(ClaimLost):
        listed.reply("y")
    assert not asking.done()


def test_a_reply_commits_with_the_callers_effects(
    asker: QueueService, queue: Queue, effects_engine: Engine
) -> None:
    """Effects, ack and reply are one transaction: seen when it commits, and not before.

    After a rollback the claim stands, and another reply may be given.
    """
    asking, message = claimed_request(asker, queue)
    with effects_engine.connect() as caller:
        message.reply("never", connection=caller)
        message.ack(connection=caller)
        caller.rollback()
    with Session(effects_engine) as session:
        add_effect(session, 1)
        message.reply("y", connection=session)
        message.ack(connection=session)
        assert not asking.done()
        session.commit()
    assert "y" == asking.result(LONGEST_WAIT).payload
    assert 1 == effect_count(effects_engine)
    assert (0, 0, 0) == counts(queue)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_taken_request_is_answered_in_its_transaction(
    asker: QueueService, queue: Queue, effects_engine: Engine
) -> None:
    """take() and reply in one transaction; there is no claim to fence."""
    asking = ask(asker.queue("jobs"), "x")
    wait_until(lambda: counts(queue) == (1, 0, 0))
    with Session(effects_engine) as session:
        [message] = queue.take(connection=session)
        message.reply("y", connection=session)
        session.commit()
    assert "y" == asking.result(LONGEST_WAIT).payload


def test_a_reply_to_a_vanished_queue_is_reported(
    asker: QueueService, queue: Queue, effects_engine: Engine
) -> None:
    """Who asked has ended: the replier is told, keeps its claim and acks.

    Its transaction goes on and commits what it did before and after, whether the queue was known
    here before or not.
    """
    _, known = claimed_request(asker, queue)
    known.reply("y")
    known.ack()
    _, message = claimed_request(asker, queue)
    asker.stop()
    with effects_engine.connect() as caller:
        add_effect(caller, 1)
        for connection in (caller, caller):
            with pytest.raises(ReplyQueueGone) as caught:
                message.reply("y", connection=connection)
            assert message.reply_to == caught.value.queue
        add_effect(caller, 2)
        message.ack(connection=caller)
        caller.commit()
    assert 2 == effect_count(effects_engine)
    assert (0, 0, 0) == counts(queue)


@pytest.mark.engines("sqlite")
def test_a_vanished_queue_is_reported_every_time(asker: QueueService, queue: Queue) -> None:
    """Without a transaction of the caller's, too."""
    _, message = claimed_request(asker, queue)
    asker.stop()
    for _ in range(2):
        with pytest.raises(ReplyQueueGone) as caught:
            message.reply("y")
        assert message.reply_to == caught.value.queue
    message.ack()
    assert (0, 0, 0) == counts(queue)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_lost_claim_leaves_the_transaction_usable(
    asker: QueueService, queue: Queue, effects_engine: Engine
) -> None:
    """After ClaimLost the caller goes on, and no reply was given."""
    asking, message = claimed_request(asker, queue)
    queue.delete(message.id)
    with effects_engine.begin() as caller:
        add_effect(caller, 1)
        with pytest.raises(ClaimLost):
            message.reply("y", connection=caller)
        add_effect(caller, 2)
    assert 2 == effect_count(effects_engine)
    assert not asking.done()


@pytest.mark.engines("sqlite")
def test_a_reply_that_cannot_be_kept_is_refused(asker: QueueService, queue: Queue) -> None:
    """Nothing is published, and a proper one may follow."""
    asking, message = claimed_request(asker, queue)
    with pytest.raises(PayloadInvalid):
        message.reply(object())
    with pytest.raises(TypeError, match="headers"):
        message.reply("y", headers=["no"])  # type: ignore[arg-type]
    message.reply("y")
    assert "y" == asking.result(LONGEST_WAIT).payload


@pytest.mark.engines("sqlite")
def test_a_reply_may_go_to_a_lasting_queue(service: QueueService, queue: Queue) -> None:
    """reply_to may name any queue; the correlation id is the key there, where there is one."""
    answers = service.create_queue("answers")
    queue.publish("a", headers={"reply_to": "answers", "correlation_id": "c1"})
    queue.publish("b", headers={"reply_to": "answers"})
    for message in consume_exactly(queue, 2):
        message.reply(message.payload * 2)
        message.ack()
    first, second = consume_exactly(answers, 2)
    assert "aa" == first.payload
    assert "c1" == first.key
    assert "c1" == first.correlation_id
    assert "bb" == second.payload
    assert second.key is None
    assert second.correlation_id is None


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_lasting_queue_that_is_gone(
    service: QueueService, queue: Queue, effects_engine: Engine
) -> None:
    """As for a temporary one: reported, and the transaction goes on."""
    service.create_queue("answers")
    queue.publish("a", headers={"reply_to": "answers"})
    [message] = queue.consume()
    message.reply("known now")
    service.drop_queue("answers")
    with effects_engine.begin() as caller:
        with pytest.raises(ReplyQueueGone):
            message.reply("y", connection=caller)
        add_effect(caller, 1)
    assert 1 == effect_count(effects_engine)
    with pytest.raises(ReplyQueueGone):
        message.reply("y")


@pytest.mark.engines("sqlite")
def test_an_existing_table_takes_no_replies(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """Its rows are the user's; but it can be asked, and its messages be replied to."""
    things = Table(
        "things", MetaData(), Column("id", Integer, primary_key=True), Column("name", String(20))
    )
    things.create(engine)
    adopted = service.adopt_queue("things", things)
    queue.publish("a", headers={"reply_to": "things"})
    [message] = queue.consume()
    with pytest.raises(ValueError, match="things"):
        message.reply("y")
    with answering(adopted, lambda m: m.payload["name"]):
        assert "ada" == adopted.request({"name": "ada"}, timeout=LONGEST_WAIT).payload
    with pytest.raises(RequestTimeout) as caught:
        adopted.request({"name": "bob"}, timeout=0.05)
    assert caught.value.withdrawn
    assert 0 == adopted.messages().count()


# -- temporary queues of the dead


def kill(service: QueueService, engine: Engine) -> None:
    """Let the consumer of a service seem long dead."""
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE queue_over_sql_consumers SET expires_at = 1 WHERE consumer_id = :id"),
            {"id": service.consumer_id},
        )


def test_a_reaper_drops_the_queue_of_a_dead_requester(
    make_service: MakeService, queue: Queue, service: QueueService, engine: Engine
) -> None:
    """Any reaper does, once; those of the living stay."""
    dead, living = make_service(consumer_timeout=60), make_service()
    with answering(queue, lambda m: m.payload):
        for one in (dead, living):
            one.queue("jobs").request(1, timeout=LONGEST_WAIT)
    reaper = make_service()
    assert 2 == len(temporary(reaper))
    assert 0 == reaper.reap().dropped
    kill(dead, engine)
    report = reaper.reap()
    assert 1 == report.dropped
    assert 1 == report.consumers
    [left] = temporary(reaper)
    assert service.queue(left).temporary
    with answering(queue, lambda m: m.payload):
        assert 2 == living.queue("jobs").request(2, timeout=LONGEST_WAIT).payload
    assert 0 == reaper.reap().dropped


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_requester_that_was_taken_for_dead_is_told(
    make_service: MakeService, queue: Queue, engine: Engine
) -> None:
    """Its queue was reaped while it waited; its next request goes under a new identity."""
    asker = make_service(consumer_timeout=60)
    asking = ask(asker.queue("jobs"), "x")
    [message] = consume_exactly(queue, 1)
    before = asker.consumer_id
    kill(asker, engine)
    assert 1 == make_service().reap().dropped
    error = asking.exception(LONGEST_WAIT)
    assert isinstance(error, ReplyQueueGone)
    with pytest.raises(ReplyQueueGone):
        message.reply("y")
    message.ack()
    with answering(queue, lambda m: m.payload):
        assert 1 == asker.queue("jobs").request(1, timeout=LONGEST_WAIT).payload
    assert before != asker.consumer_id
    [name] = temporary(asker)
    assert name != message.reply_to


# On SQLite one transaction writes at a time, so no pass runs beside it.
@pytest.mark.engines("postgresql", "mariadb", "mysql", "h2")
def test_a_reaper_does_not_wait_for_an_open_reply(
    make_service: MakeService, queue: Queue, engine: Engine
) -> None:
    """A handler's transaction with a reply in it is left alone; the next pass drops the queue."""
    asker = make_service(consumer_timeout=60)
    ask(asker.queue("jobs"), "x")
    [message] = consume_exactly(queue, 1)
    kill(asker, engine)
    reaper = make_service()
    with engine.connect() as caller:
        message.reply("y", connection=caller)
        assert 0 == reaper.reap().dropped
        caller.rollback()
    assert 1 == reaper.reap().dropped
    with pytest.raises(QueueNotFound):
        reaper.queue(str(message.reply_to))


@pytest.mark.engines("postgresql", "mariadb", "mysql", "h2")
def test_stopping_does_not_wait_for_an_open_reply(
    make_service: MakeService, queue: Queue, engine: Engine
) -> None:
    """The requester ends at once, and a reaper drops its queue when the transaction is over."""
    asker = make_service()
    ask(asker.queue("jobs"), "x")
    [message] = consume_exactly(queue, 1)
    reaper = make_service()
    with engine.connect() as caller:
        message.reply("y", connection=caller)
        asker.stop()
        assert [message.reply_to] == temporary(reaper)
        caller.commit()
    assert 1 == reaper.reap().dropped
    assert [] == temporary(reaper)
