"""Requests: each gets its own reply in time, or an error."""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from queue_over_sql import (
    DatabaseRefused,
    DuplicateKey,
    PayloadInvalid,
    PayloadTooLarge,
    QueueNotFound,
    ReplyQueueGone,
    RequestTimeout,
    ServiceClosed,
)
from queue_over_sql.request_reply import request as replies
from queue_over_sql.request_reply import store
from tests.contract.queue_state import counts, ids, payloads, set_columns
from tests.contract.request_reply.asking_and_answering import (
    LONGEST_WAIT,
    answering,
    ask,
    temporary,
)
from tests.refusals import refused
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from concurrent.futures import Future

    from sqlalchemy import Engine

    from queue_over_sql import Message, Published, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


class Clock:
    """What requests wait by; a test may put it forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        """Seconds since some instant."""
        return time.monotonic() + self.ahead

    def run_out(self, *asking: Future[Message]) -> list[BaseException | None]:
        """Put it forward until nobody waits any longer; who begins to wait counts from there."""

        def ended() -> bool:
            self.ahead += LONGEST_WAIT
            return all(one.done() for one in asking)

        wait_until(ended)
        return [one.exception() for one in asking]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all requests."""
    clock = Clock()
    monkeypatch.setattr(replies, "time", clock)
    return clock


def double(message: Message) -> Any:
    """What the answering side of most tests makes of a request."""
    return message.payload * 2


def test_a_request_returns_its_reply(make_service: MakeService, queue: Queue) -> None:
    """Another service answers; the reply carries payload, kind and headers, and needs no ack."""
    replier = make_service().queue("jobs")

    def answer(message: Message) -> None:
        message.reply({"sum": 3}, kind="sum", headers={"unit": "m", "deep": {"n": [1]}})

    with answering(replier, answer):
        reply = queue.request([1, 2], timeout=LONGEST_WAIT)
    assert {"sum": 3} == reply.payload
    assert "sum" == reply.kind
    assert reply.settled
    assert {"unit": "m", "deep": {"n": [1]}} == {
        name: value for name, value in reply.headers.items() if name != "correlation_id"
    }
    assert reply.correlation_id == reply.key
    assert reply.reply_to is None
    assert (0, 0, 0) == counts(queue)


@pytest.mark.engines("sqlite")
def test_the_request_names_where_its_reply_goes(queue: Queue, service: QueueService) -> None:
    """Options of a publish reach the message, besides reply_to and correlation_id."""
    asking = ask(queue, "x", kind="question", headers={"trace": "t"}, key="k", max_attempts=2)
    [message] = consume_exactly(queue, 1)
    assert message.reply_to is not None
    assert "question" == message.kind
    assert "t" == message.headers["trace"]
    assert "k" == message.key
    assert 2 == message.max_attempts
    assert [message.reply_to] == temporary(service)
    message.reply("y")
    reply = asking.result(LONGEST_WAIT)
    assert "y" == reply.payload
    assert message.correlation_id == reply.correlation_id


@pytest.mark.engines("sqlite")
def test_a_message_that_is_no_request(queue: Queue) -> None:
    """It has neither reply_to nor correlation_id, and cannot be replied to."""
    queue.publish("x", headers={"reply_to": 5, "correlation_id": ["no"]})
    [message] = queue.consume()
    assert message.reply_to is None
    assert message.correlation_id is None
    with pytest.raises(ValueError, match="reply_to"):
        message.reply("y")
    message.ack()


@pytest.mark.default_on("sqlite", "postgresql")
def test_each_thread_gets_its_own_reply(make_service: MakeService, queue: Queue) -> None:
    """Many threads ask at once over one queue of replies; it is empty afterwards."""
    repliers = [make_service().queue("jobs") for _ in range(2)]
    service = make_service()
    asked = service.queue("jobs")

    def request(number: int) -> Any:
        return asked.request(number, timeout=LONGEST_WAIT).payload

    both = answering(repliers[0], double), answering(repliers[1], double)
    with both[0], both[1], ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(request, range(64)))
    assert [number * 2 for number in range(64)] == replies
    [inbox] = temporary(service)
    assert (0, 0, 0) == counts(service.queue(inbox))
    assert (0, 0, 0) == counts(queue)


@pytest.mark.engines("sqlite")
def test_one_queue_of_replies_for_all_queues(service: QueueService, queue: Queue) -> None:
    """A service has one, made at its first request, whatever queues it asks."""
    other = service.create_queue("other")
    assert [] == temporary(service)
    with answering(queue, double), answering(other, double):
        assert 2 == queue.request(1, timeout=LONGEST_WAIT).payload
        assert 4 == other.request(2, timeout=LONGEST_WAIT).payload
    assert 1 == len(temporary(service))


@pytest.mark.engines("sqlite")
def test_temporary_queues_are_listed_only_on_demand(service: QueueService, queue: Queue) -> None:
    """queues() leaves them out unless asked; queue() opens them."""
    with answering(queue, double):
        queue.request(1, timeout=LONGEST_WAIT)
    assert ["jobs"] == [one.name for one in service.queues()]
    [name] = temporary(service)
    assert ["jobs", name] == sorted(one.name for one in service.queues(temporary=True))
    inbox = service.queue(name)
    assert inbox.temporary
    assert not queue.temporary
    assert "none" == inbox.settings.archive


def test_an_unanswered_request_is_withdrawn(queue: Queue) -> None:
    """Nobody has begun with it when the time is up, so nobody ever will."""
    with pytest.raises(RequestTimeout) as caught:
        queue.request("x", timeout=0.05)
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert "jobs" == error.queue
    assert error.withdrawn
    assert error.correlation_id
    assert error.message_id > 0
    assert "withdrawn" in str(error)
    assert (0, 0, 0) == counts(queue)
    queue.publish("next")
    assert ["next"] == [message.payload for message in queue.consume(5)]


def test_a_request_that_somebody_began_with_is_not_withdrawn(queue: Queue, clock: Clock) -> None:
    """Nor one that waits for its retry, nor what replaced it by its key: that is another's."""
    keys = ["held", "failed", "mine"]
    asking = [ask(queue, key, key=key, max_attempts=3) for key in keys[:2]]
    for message in consume_exactly(queue, 2):
        if message.key == "failed":
            message.nack("no", delay=600)
    asking.append(ask(queue, "mine", key="mine"))
    wait_until(lambda: queue.messages(key="mine").count() == 1)
    queue.publish("yours", key="mine", on_conflict="replace")
    errors = clock.run_out(*asking)
    assert [False] * 3 == [isinstance(e, RequestTimeout) and e.withdrawn for e in errors]
    assert [RequestTimeout] * 3 == [type(error) for error in errors]
    assert [False, False, True] == ["no longer in the queue" in str(error) for error in errors]
    assert ["failed", "held", "yours"] == sorted(payloads(queue.messages().list()))


@pytest.mark.engines("sqlite")
def test_a_request_that_ended_is_not_handled_any_more(queue: Queue, clock: Clock) -> None:
    """The error says so, whoever ended it: a consumer without a reply, an operator, or time."""
    for end in ("acked", "rejected", "cancelled"):
        asking = ask(queue, "question")
        wait_until(lambda: queue.messages().count() == 1)
        if end == "cancelled":
            queue.cancel(queue.messages().list()[0].id)
        elif end == "acked":
            queue.consume(1)[0].ack()
        else:
            queue.consume(1)[0].reject("no")
        [error] = clock.run_out(asking)
        assert isinstance(error, RequestTimeout)
        assert not error.withdrawn
        assert "no longer in the queue" in str(error)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_late_reply_is_cleaned_up_by_later_requests(
    make_service: MakeService, queue: Queue, clock: Clock
) -> None:
    """Nobody waits for it any more, so it is removed and nobody gets it."""
    service = make_service(reaper_interval=0.1)
    asked = service.queue("jobs")
    asking = ask(asked, "slow")
    [late] = consume_exactly(queue, 1)
    assert [RequestTimeout] == [type(error) for error in clock.run_out(asking)]
    late.reply("too late")
    late.ack()
    inbox = service.queue(temporary(service)[0])
    assert 1 == inbox.messages().count()

    def asked_again() -> bool:
        assert 2 == asked.request(1, timeout=LONGEST_WAIT).payload
        return inbox.messages().count() == 0

    with answering(queue, double):
        wait_until(asked_again, timeout=LONGEST_WAIT)


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.threads("Python decides")
def test_a_reply_that_cannot_be_read_stays(
    make_service: MakeService, queue: Queue, engine: Engine
) -> None:
    """Another client wrote over its headers: the error names it, and it is not removed."""
    answers = make_service().create_queue("answers")
    asked = make_service(reply_queue="answers").queue("jobs")

    def answer(message: Message) -> Published:
        with engine.begin() as connection:
            reply = message.reply("yes", connection=connection)
            change = update(answers.table).where(answers.table.c.id == reply.id)
            connection.execute(change.values(headers="[1]"))
        return reply

    with answering(queue, answer), pytest.raises(PayloadInvalid, match=r"Reply 1 .*its headers"):
        asked.request(1, timeout=LONGEST_WAIT)
    assert 1 == answers.messages().count()


@pytest.mark.default_on("sqlite", "postgresql")
def test_no_request_fails_because_of_old_replies(
    make_service: MakeService,
    queue: Queue,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What cannot be read is no reply, and stays; a failed removal is only logged."""
    answers = make_service().create_queue("answers")
    old = answers.publish("old", key="k").id
    set_columns(engine, answers, old, headers="[1]", published_at=1)
    with answering(queue, double):
        asked = make_service(reply_queue="answers").queue("jobs")
        assert 2 == asked.request(1, timeout=LONGEST_WAIT).payload
        assert [old] == ids(answers.messages().list())

        def fail(*_: object) -> int:
            raise DatabaseRefused("no")

        monkeypatch.setattr(store, "remove_unwanted", fail)
        asked = make_service(reply_queue="answers").queue("jobs")
        assert 2 == asked.request(1, timeout=LONGEST_WAIT).payload
    assert "Late replies in queue answers could not be removed: no" in caplog.text


def test_the_queue_of_replies_ends_with_its_service(
    make_service: MakeService, queue: Queue, service: QueueService
) -> None:
    """stop() drops it, table and record."""
    asking = make_service()
    with answering(queue, double):
        asking.queue("jobs").request(1, timeout=LONGEST_WAIT)
    [name] = temporary(service)
    asking.stop()
    assert [] == temporary(service)
    with pytest.raises(QueueNotFound):
        service.queue(name)


@pytest.mark.engines("sqlite")
def test_stopping_a_service_ends_its_requests(make_service: MakeService, queue: Queue) -> None:
    """Who waits in another thread is told at once."""
    service = make_service()
    asking = ask(service.queue("jobs"), "x")
    wait_until(lambda: counts(queue) == (1, 0, 0))
    service.stop()
    assert isinstance(asking.exception(LONGEST_WAIT), ServiceClosed)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_dropped_queue_of_replies_is_told_to_who_waits(
    service: QueueService, queue: Queue
) -> None:
    """The requester learns that no reply can come, and its next request works again."""
    asking = ask(queue, "x")
    [message] = consume_exactly(queue, 1)
    assert message.reply_to is not None
    service.drop_queue(message.reply_to)
    error = asking.exception(LONGEST_WAIT)
    assert isinstance(error, ReplyQueueGone)
    assert message.reply_to == error.queue
    assert "may" in str(error)
    message.ack()
    with answering(queue, double):
        assert 2 == queue.request(1, timeout=LONGEST_WAIT).payload


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_requests_that_cannot_end_are_refused(queue: Queue) -> None:
    """A time limit that is none, and options with which nobody could answer in time."""
    timeouts: list[Any] = [0, -1, None, "soon", float("nan"), True]
    for timeout in timeouts:
        with refused(timeout, TypeError, ValueError, match="timeout"):
            queue.request("x", timeout=timeout)
    for option in ("connection", "delay", "at", "on_conflict"):
        given: dict[str, Any] = {option: None}
        with refused(option, TypeError, match=option):
            queue.request("x", timeout=1, **given)
    assert (0, 0, 0) == counts(queue)


@pytest.mark.engines("sqlite")
def test_a_refused_request_is_not_published(service: QueueService) -> None:
    """Errors of a publish come as such: the payload's, the key's, the headers'."""
    queue = service.create_queue("small", max_payload_bytes=10)
    queue.publish("x", key="k")
    with pytest.raises(PayloadTooLarge):
        queue.request("x" * 50, timeout=1)
    with pytest.raises(DuplicateKey):
        queue.request("x", timeout=1, key="k")
    with pytest.raises(TypeError, match="headers"):
        queue.request("x", timeout=1, headers="no")  # type: ignore[arg-type]
    assert (1, 0, 0) == counts(queue)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_request_to_a_dropped_queue(service: QueueService, queue: Queue) -> None:
    """QueueNotFound, as for a publish."""
    service.drop_queue("jobs")
    with pytest.raises(QueueNotFound) as caught:
        queue.request("x", timeout=1)
    assert "jobs" == caught.value.queue


@pytest.mark.engines("sqlite")
def test_queues_of_text_and_bytes_may_be_asked(service: QueueService) -> None:
    """The request has the queue's payload type; the reply is JSON."""
    texts = service.create_queue("texts", payload="text")
    blobs = service.create_queue("blobs", payload="bytes")
    with answering(texts, lambda m: [m.payload]), answering(blobs, lambda m: len(m.payload)):
        assert ["é"] == texts.request("é", timeout=LONGEST_WAIT).payload
        assert 3 == blobs.request(b"\0\1\2", timeout=LONGEST_WAIT).payload


@pytest.mark.engines("sqlite")
def test_a_worker_answers(make_service: MakeService, queue: Queue) -> None:
    """A handler replies; what it returns is acknowledged as ever."""
    worker = make_service().worker(poll_interval=(0.005, 0.05))

    @worker.handle("jobs")
    def answer(message: Message) -> None:
        message.reply(message.payload + 1)

    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert [2, 3] == [queue.request(n, timeout=LONGEST_WAIT).payload for n in (1, 2)]
    finally:
        worker.stop()
        thread.join(LONGEST_WAIT)
    assert (0, 0, 0) == counts(queue)


@pytest.mark.engines("sqlite")
def test_a_reply_may_be_a_request(service: QueueService, queue: Queue) -> None:
    """A reply that names a queue of its own can be replied to, without a claim."""
    service.create_queue("talk")
    answers = {"reply_to": "talk"}
    with answering(queue, lambda m: m.reply("what?", headers=answers)):
        reply = queue.request("x", timeout=LONGEST_WAIT)
    reply.reply("this")
    [message] = service.queue("talk").consume()
    assert "this" == message.payload
    assert reply.correlation_id == message.correlation_id


class Interrupted(BaseException):
    """What a signal may raise, wherever the program is."""


@pytest.mark.engines("sqlite")
def test_an_interrupted_request_is_withdrawn(make_service: MakeService, queue: Queue) -> None:
    """Whoever asked does not wait any more, so nobody needs to begin with it."""
    service = make_service()
    parts = service._parts

    def interrupt(*arguments: Any) -> bool:
        raise Interrupted(*arguments)

    parts.arrivals.wait = interrupt  # type: ignore[assignment, method-assign]
    with pytest.raises(Interrupted):
        service.queue("jobs").request("x", timeout=LONGEST_WAIT)
    assert (0, 0, 0) == counts(queue)


@dataclasses.dataclass
class Question:
    """A kind of request."""

    about: str


@pytest.mark.engines("sqlite")
def test_requests_may_have_kinds(make_service: MakeService) -> None:
    """A request is typed as a publish is, on both sides; its reply is plain JSON."""
    asked, replier = (make_service().create_queue("typed", kinds=[Question]) for _ in range(2))
    with answering(replier, lambda m: [type(m.payload).__name__, m.payload.about]):
        reply = asked.request(Question("tea"), timeout=LONGEST_WAIT)
    assert ["Question", "tea"] == reply.payload
    assert reply.kind is None


@pytest.mark.engines("sqlite")
@pytest.mark.threads("an event loop does not outlive a fork")
def test_an_ending_child_leaves_the_queue_of_its_parent(service: QueueService) -> None:
    """Only the consumer that a queue of replies was made for drops it."""
    own = service._reply_queues.own()
    service._temporary.drop_own(str(uuid.uuid4()))
    assert [own.name] == temporary(service)
