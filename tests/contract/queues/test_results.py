"""Results: what a consumer acks a message with, and whoever published it reads."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from queue_over_sql import (
    ClaimLost,
    NoResult,
    PayloadInvalid,
    PayloadTooLarge,
    ResultTimeout,
)
from tests.contract.caller_transactions import OPENERS, opened
from tests.contract.queue_state import set_columns
from tests.contract.worker.running_worker import running
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue, QueueService

pytestmark = pytest.mark.driver_decides


@pytest.fixture
def kept(service: QueueService) -> Queue:
    """A queue that keeps finished messages."""
    return service.create_queue("kept", archive="all", max_attempts=1, group_limit=1)


def test_a_result_is_kept_with_the_archived_message(kept: Queue, engine: Engine) -> None:
    """It stands beside the headers, in the caller's transaction too, and only under the fence."""
    results: list[Any] = [{"total": 1.5, "who": "Zoë"}, [], False, "text"]
    published = kept.publish_many(range(5))
    wanted = kept.publish("headers", headers={"own": 1}, group="a").id
    *messages, last = consume_exactly(kept, 6)
    for message, result in zip(messages, results, strict=False):
        message.ack(result=result)
    assert [*results, None] == [_found(kept, each.id) for each in published]
    messages[4].ack()
    assert None is kept.result(published[4].id)
    with opened(OPENERS["connection"], engine) as caller:
        last.ack(caller, result=1)
        caller.rollback()
    with opened(OPENERS["connection"], engine) as caller:
        kept.held(last.token).ack(caller, result=2)
        caller.commit()
    assert 2 == kept.result(wanted)
    found = kept.archive.messages().list()[-1]
    assert {"own": 1, "ack_result": 2} == found.headers
    with pytest.raises(ClaimLost):
        kept.ack(messages[0], result="late")
    assert results[0] == kept.result(published[0].id)
    kept.archive.messages(where=kept.archive.table.c.id == wanted).requeue()
    (again,) = consume_exactly(kept, 1)
    assert "ack_result" not in again.headers
    assert {"own": 1} == {name: again.headers[name] for name in ("own",)}


OTHERS_HEADERS = {
    "a surrogate": r'{"t":"caf\ud83d","u":"\u20ac"}',
    "infinity": '{"t":[1e999,-1e999],"Infinity":"Infinity \\" Infinity"}',
    "NaN": '{"t":NaN}',
}
"""Headers that another client may store, and this library never writes."""


def test_headers_of_another_client_stay_as_they_came(kept: Queue, engine: Engine) -> None:
    """Beside a result, and in the message that is requeued; no lease passes in vain."""
    for name, stored in OTHERS_HEADERS.items():
        if name == "NaN" and engine.dialect.name == "postgresql":
            # Its type for JSON takes none.
            continue
        message_id = kept.publish(name).id
        set_columns(engine, kept, message_id, headers=stored)
        (message,) = consume_exactly(kept, 1)
        sent = dict(message.headers)
        message.ack(result="Zoë")
        assert "Zoë" == kept.result(message_id)
        chosen = kept.archive.messages(where=kept.archive.table.c.id == message_id)
        assert repr(sent | {"ack_result": "Zoë"}) == repr(chosen.list()[0].headers)
        assert 1 == chosen.requeue()
        (again,) = consume_exactly(kept, 1)
        assert repr(sent | {"requeued_from": message_id}) == repr(again.headers)
        again.ack()


@pytest.mark.engines("sqlite")
def test_a_result_that_cannot_be_read_is_lost(kept: Queue, engine: Engine) -> None:
    """Another client has written over the headers of a finished message."""
    message_id = kept.publish("x").id
    kept.consume()[0].ack(result=1)
    table = kept.archive.table
    for headers in ("[1]", "junk", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"):
        with engine.begin() as connection:
            connection.execute(update(table).values(headers=headers))
        with pytest.raises(NoResult, match=f"result of message {message_id} .* is lost"):
            kept.result(message_id)


def test_a_lost_claim_leaves_no_result(kept: Queue, engine: Engine) -> None:
    """Neither on the live message, nor for the consumer that has it now."""
    message_id = kept.publish("x", headers={"own": 1}).id
    (message,) = consume_exactly(kept, 1)
    set_columns(engine, kept, message_id, consumer_round=10**6)
    with pytest.raises(ClaimLost):
        message.ack(result=1)
    (live,) = kept.messages().list()
    assert {"own": 1} == live.headers


def test_a_waiting_caller_gets_the_result(kept: Queue) -> None:
    """It waits until the message is finished, whatever becomes of it."""
    done, failed = kept.publish("done").id, kept.publish("failed").id
    first, second = consume_exactly(kept, 2)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(kept.result, each, wait=60) for each in (done, failed)]
        kept.ack(first, result={"a": [1]})
        assert {"a": [1]} == waiting[0].result()
        second.nack(ValueError("no paper"))
        with pytest.raises(NoResult, match="no paper") as caught:
            waiting[1].result()
    assert ("failed", failed) == (caught.value.outcome, caught.value.message_id)
    assert "ValueError: no paper" == caught.value.reason


@pytest.mark.engines("sqlite")
def test_why_there_is_no_result(kept: Queue, service: QueueService) -> None:
    """The error says which: not yet, never, unknown, or nothing is kept; nothing is changed."""
    waiting = kept.publish("waiting").id
    with pytest.raises(ResultTimeout, match=r"not finished within 0 s.*why"):
        kept.result(waiting)
    kept.cancel(waiting, "not needed")
    with pytest.raises(NoResult, match=r"rejected: cancelled by operator: not needed"):
        kept.result(waiting)
    with pytest.raises(NoResult, match="deleted"):
        kept.result(10**6)
    none = service.create_queue("none")
    message_id = none.publish("x").id
    with pytest.raises(NoResult, match="archive='all'"):
        none.result(message_id)
    (message,) = none.consume()
    with pytest.raises(ValueError, match="archive='all'"):
        message.ack(result=1)
    kept.publish("y")
    (other,) = kept.consume()
    for result, error in ((object(), PayloadInvalid), ("x" * 70_000, PayloadTooLarge)):
        with pytest.raises(error):
            other.ack(result=result)
    message.ack()
    other.ack()


@pytest.mark.engines("sqlite")
def test_a_handler_returns_the_result(face: str, kept: Queue, service: QueueService) -> None:
    """Alone, in its transaction, and in a shared one.

    What cannot be stored is a failure, and the handler does not run again for it.
    """
    service.create_queue("kept", max_attempts=3)
    kept.refresh()
    called = list[str]()
    around = _around if face == "threads" else _around_on_loop
    for options in ({}, {"transactional": True}, {"transactional": True, "commit_every": 3}):
        worker = service.worker(concurrency=1, middleware=() if options else (around,))

        @worker.handle("kept", keep_result=True, **options)
        def handle(message: Message, *connection: Connection) -> Any:
            del connection
            called.append(message.payload)
            special = {"none": None, "bad": object(), "large": "x" * 70_000}
            return special.get(message.payload, [message.payload])

        ids = [kept.publish(name).id for name in ("a", "none", "bad", "b", "large")]
        with running(worker):
            assert ["a"] == kept.result(ids[0], wait=60)
            assert None is kept.result(ids[1], wait=60)
            with pytest.raises(NoResult, match=r"failed: .*cannot be kept as its result"):
                kept.result(ids[2], wait=60)
            assert ["b"] == kept.result(ids[3], wait=60)
            with pytest.raises(NoResult, match=r"cannot be kept .* limit is 65,536"):
                kept.result(ids[4], wait=60)
    assert [3, 3] == [called.count(name) for name in ("bad", "large")]
    with pytest.raises(ValueError, match="batch"):
        service.worker().handle("kept", keep_result=True, batch=2)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("both faces keep the result by the same function")
def test_what_was_rolled_back_leaves_no_result(
    kept: Queue, service: QueueService, engine: Engine
) -> None:
    """Neither a try that the database rolled back, nor an ack in a caller's transaction."""
    tries = list[Any]([{"a": 1}, None])

    def lose_the_first(message: Message, call: Any) -> None:
        del message
        call()
        if tries:
            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise OperationalError("COMMIT", None, busy)

    worker = service.worker(concurrency=1, middleware=(lose_the_first,))

    @worker.handle("kept", transactional=True, keep_result=True)
    def handle(message: Message, connection: Connection) -> Any:
        del message, connection
        return tries.pop(0)

    published = kept.publish("tried twice").id
    with running(worker):
        assert None is kept.result(published, wait=60)
    assert [] == tries
    published = kept.publish("acked twice").id
    (message,) = consume_exactly(kept, 1)
    with opened(OPENERS["connection"], engine) as caller:
        kept.ack(message, connection=caller, result=5)
        caller.rollback()
    kept.ack(message)
    assert None is kept.result(published)


@pytest.mark.engines("sqlite")
def test_headers_that_are_passed_on_carry_no_result(kept: Queue) -> None:
    """Whoever publishes with the headers of a finished message has not finished the new one."""
    old = kept.publish("old", headers={"own": 1}).id
    kept.ack(consume_exactly(kept, 1), result="of the old one")
    (found,) = kept.archive.messages(where=kept.archive.table.c.id == old).list()
    assert "ack_result" in found.headers
    new = kept.publish("new", headers=found.headers).id
    (message,) = consume_exactly(kept, 1)
    assert {"own": 1} == message.headers
    message.ack()
    assert None is kept.result(new)


def _around(message: Message, call: Any) -> None:
    """Middleware that does not return what the handler returned."""
    del message
    call()


async def _around_on_loop(message: Message, call: Any) -> None:
    del message
    await call()


def _found(queue: Queue, message_id: int) -> Any:
    try:
        return queue.result(message_id)
    except ResultTimeout:
        return None
