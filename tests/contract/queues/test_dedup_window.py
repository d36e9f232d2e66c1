"""``dedup_window``: a key stays taken for a while after its message is finished."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import (
    ClaimLost,
    DatabaseUnavailable,
    DuplicateKey,
    FixedDelay,
    Publication,
)
from tests.contract.caller_transactions import OPENERS, Caller, opened
from tests.contract.queue_state import (
    ARGUMENT_ERRORS,
    add_effect,
    counts,
    effect_count,
    effects,
    finished,
    isolates_snapshots,
    payloads,
    row_count,
)
from tests.contract.worker.running_worker import HandlerFailed, running
from tests.refusals import refused
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService
    from queue_over_sql.values.states import OnConflict

    Finish = Callable[[QueueService, Queue, Engine], object]
    from queue_over_sql import Queue

KEYS = "queue_jobs_dedup_keys"
"""The table of the keys of finished messages, as the documentation names it."""


def make_jobs(service: QueueService, **settings: Any) -> Queue:
    """A queue whose keys stay taken for long, and whose messages have one attempt."""
    wanted = {"dedup_window": 600, "max_attempts": 1, "retry": FixedDelay(0), **settings}
    return service.create_queue("jobs", **wanted)


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue whose keys stay taken for ten minutes."""
    return make_jobs(service)


def assert_taken(queue: Queue, key: str, message_id: int) -> None:
    """The key belongs to a finished message: all three ways of a publish say so."""
    with pytest.raises(DuplicateKey) as caught:
        queue.publish("again", key=key)
    assert key == caught.value.key
    assert message_id == caught.value.id
    for on_conflict in ("skip", "replace"):
        answer = queue.publish("again", key=key, on_conflict=on_conflict)
        assert message_id == answer.id
        assert "skipped" == answer.outcome
    assert 0 == queue.messages().count()


# ---------------------------------------------------------------- every way to finish


def in_transaction(_: QueueService, queue: Queue, engine: Engine) -> None:
    with engine.begin() as caller:
        queue.consume()[0].ack(connection=caller)


def take(_: QueueService, queue: Queue, engine: Engine) -> None:
    with engine.begin() as caller:
        assert 1 == len(queue.take(connection=caller))


def expire(service: QueueService, queue: Queue, _: Engine) -> None:
    (message,) = queue.consume(lease=0.05)
    wait_until(lambda: service.reap() is not None and queue.messages().count() == 0)
    with pytest.raises(ClaimLost):
        message.ack()


def handle(service: QueueService, queue: Queue, *, transactional: bool, fails: bool) -> None:
    worker = service.worker(concurrency=1, poll_interval=(0.005, 0.05))

    @worker.handle(queue.name, transactional=transactional)
    def work(message: Message, _: Connection | None = None) -> None:
        del message
        if fails:
            raise HandlerFailed

    with running(worker):
        wait_until(lambda: queue.messages().count() == 0)


def by_worker(*, transactional: bool = False, fails: bool = False) -> Finish:
    return lambda service, queue, _: handle(
        service, queue, transactional=transactional, fails=fails
    )


FINISHES: dict[str, Finish] = {
    "ack": lambda _, queue, __: queue.consume()[0].ack(),
    "batch ack": lambda _, queue, __: queue.ack(queue.consume(5)),
    "exchange": lambda _, queue, __: queue.exchange(queue.consume(5)),
    "reject": lambda _, queue, __: queue.consume()[0].reject("bad"),
    "batch reject": lambda _, queue, __: queue.reject(queue.consume(5), "bad"),
    "nack": lambda _, queue, __: queue.consume()[0].nack("bad"),
    "expired lease": expire,
    "take": take,
    "ack in a transaction": in_transaction,
    "worker": by_worker(),
    "failing worker": by_worker(fails=True),
    "transactional worker": by_worker(transactional=True),
}


def test_however_a_message_finishes_its_key_stays_taken(
    service: QueueService, jobs: Queue, engine: Engine
) -> None:
    """Done, failed or rejected; the answer names the message that finished."""
    for name, finish in FINISHES.items():
        published = jobs.publish("x", key=name)
        finish(service, jobs, engine)
        assert_taken(jobs, name, published.id)
    assert "created" == jobs.publish("y", key="ACK").outcome


def test_the_archive_does_not_matter(service: QueueService, engine: Engine) -> None:
    """Kept or not, a finished message's key is taken."""
    for archive in ("none", "all"):
        queue = make_jobs(service, archive=archive)
        for name in ("ack", "exchange", "reject", "nack", "take"):
            key = f"{archive} {name}"
            published = queue.publish("x", key=key)
            FINISHES[name](service, queue, engine)
            assert (archive == "all") == bool(queue.archive.messages(key=key).count()), key
            assert_taken(queue, key, published.id)


def test_a_batch_takes_all_its_keys(jobs: Queue, engine: Engine) -> None:
    """Every message of a batch settle; of one without a key there is nothing to remember."""
    jobs.publish_many([Publication("a", key="a"), "plain", Publication("b", key="b")])
    messages = finished(jobs, "done", 3)
    assert 2 == row_count(engine, KEYS)
    assert_taken(jobs, "a", messages[0].id)
    assert_taken(jobs, "b", messages[2].id)


# ---------------------------------------------------------------- what does not finish a message


def test_a_rolled_back_finish_takes_nothing(jobs: Queue, engine: Engine) -> None:
    """The message is live as before, and deleting it frees its key."""
    verbs: tuple[Callable[[Caller], object], ...] = (
        lambda caller: jobs.ack(jobs.consume(), connection=caller),
        lambda caller: jobs.take(connection=caller),
    )
    for opener, verb in zip(OPENERS.values(), verbs, strict=True):
        published = jobs.publish("x", key="k")
        with opened(opener, engine) as caller:
            verb(caller)
            caller.rollback()
        with pytest.raises(DuplicateKey) as caught:
            jobs.publish("y", key="k")
        assert published.id == caught.value.id
        assert jobs.delete(published.id)
        jobs.delete(jobs.publish("y", key="k").id)


def test_a_lost_claims_ack_does_not_take_the_key(jobs: Queue) -> None:
    """Whoever lost the message finishes nothing."""
    published = jobs.publish("x", key="k")
    (message,) = jobs.consume()
    jobs.delete(published.id)
    with pytest.raises(ClaimLost):
        message.ack()
    with pytest.raises(ClaimLost):
        message.nack("bad")
    with pytest.raises(ClaimLost):
        message.reject("bad")
    assert "created" == jobs.publish("y", key="k").outcome


def test_a_retry_is_no_finish(service: QueueService) -> None:
    """A failed attempt leaves the message live; then it may be removed."""
    queue = make_jobs(service, max_attempts=3)
    queue.publish("x", key="k")
    queue.consume()[0].nack("later")
    assert 1 == queue.messages(key="k").remove()
    assert "created" == queue.publish("y", key="k").outcome


FREEING: dict[str, Callable[[Queue, int], object]] = {
    "delete": lambda queue, number: queue.delete(number),
    "purge": lambda queue, _: queue.purge(),
    "purge all": lambda queue, _: queue.purge(claimed=True),
    "remove": lambda queue, _: queue.messages().remove(),
}


def test_an_operator_frees_a_key_at_once(jobs: Queue) -> None:
    """Who removes a message by hand may publish it again."""
    for name, operation in FREEING.items():
        operation(jobs, jobs.publish("x", key="k").id)
        again = jobs.publish("y", key="k")
        assert "created" == again.outcome, name
        jobs.delete(again.id)


# ---------------------------------------------------------------- the window passes


def test_after_the_window_the_key_is_free(service: QueueService) -> None:
    """Without any reaper; and the next finish takes it again."""
    queue = make_jobs(service)

    def created(way: OnConflict) -> bool:
        try:
            return queue.publish("y", key=way, on_conflict=way).outcome == "created"
        except DuplicateKey:
            return False

    for way in ("skip", "replace", "raise"):
        make_jobs(service, dedup_window=0.05)
        first = queue.publish("x", key=way)
        finished(queue, "done")
        wait_until(partial(created, way))
        make_jobs(service)
        (second,) = finished(queue, "rejected")
        assert second.id > first.id
        assert_taken(queue, way, second.id)


def test_the_reaper_forgets_keys_whose_window_passed(service: QueueService, engine: Engine) -> None:
    """In bounded batches, and only those."""
    queue = make_jobs(service, dedup_window=0.05)
    queue.load(Publication(n, key=f"k{n}") for n in range(600))
    finished(queue, "done", 600)
    service.create_queue("jobs", dedup_window=600)
    kept = queue.publish("kept", key="kept")
    finished(queue, "done")
    wait_until(lambda: service.reap() is not None and row_count(engine, KEYS) == 1)
    assert_taken(queue, "kept", kept.id)


# ---------------------------------------------------------------- batches and transactions


def test_publish_many_is_all_or_none(jobs: Queue) -> None:
    """A key of a finished message stops or skips as a live one does."""
    done = jobs.publish("x", key="k")
    finished(jobs, "done")
    items = ["plain", Publication("again", key="k"), Publication("other", key="o")]
    with pytest.raises(DuplicateKey) as caught:
        jobs.publish_many(items)
    assert done.id == caught.value.id
    assert 0 == jobs.messages().count()
    for on_conflict in ("skip", "replace"):
        answers = jobs.publish_many(items, on_conflict=on_conflict)
        assert "skipped" == answers[1].outcome
        assert done.id == answers[1].id
    assert ["plain", "other", "plain"] == payloads(jobs.consume(9))


def test_load_is_all_or_none_in_a_batch(jobs: Queue) -> None:
    """The bulk path looks at finished messages too."""
    done = jobs.publish("x", key="k")
    finished(jobs, "done")
    with pytest.raises(DuplicateKey) as caught:
        jobs.load([1, 2, 3, Publication(4, key="k")], batch_size=2)
    assert "k" == caught.value.key
    assert done.id == caught.value.id
    assert [1, 2] == payloads(jobs.consume(9))


def test_a_taken_key_leaves_the_callers_transaction_usable(
    jobs: Queue, effects_engine: Engine
) -> None:
    """Inside one transaction: ack, publish again, be refused, and go on."""
    for number, (key, opener) in enumerate(OPENERS.items()):
        first = jobs.publish("x", key=key)
        (message,) = jobs.consume()
        with opened(opener, effects_engine) as caller:
            add_effect(caller, 2 * number)
            message.ack(connection=caller)
            with pytest.raises(DuplicateKey) as caught:
                jobs.publish("y", key=key, connection=caller)
            with pytest.raises(DuplicateKey):
                jobs.publish_many(["z", Publication("y", key=key)], connection=caller)
            add_effect(caller, 2 * number + 1)
            jobs.publish("other", connection=caller)
            caller.commit()
        assert first.id == caught.value.id
        (other,) = consume_exactly(jobs, 1)
        assert "other" == other.payload
        other.ack()
    assert 4 == effect_count(effects_engine)


def test_a_finish_after_the_callers_transaction_began_counts(
    jobs: Queue, effects_engine: Engine
) -> None:
    """A snapshot that is older than the finish does not hide it, or the publish is refused."""
    first = jobs.publish("x", key="k")
    with effects_engine.connect() as caller:
        assert [] == caller.execute(effects.select()).all()
        finished(jobs, "done")
        with pytest.raises((DuplicateKey, DatabaseUnavailable)) as caught:
            jobs.publish("y", key="k", connection=caller)
        assert isinstance(caught.value, DatabaseUnavailable) == isolates_snapshots(caller)
    assert first.id == getattr(caught.value, "id", first.id)
    assert_taken(jobs, "k", first.id)


# ---------------------------------------------------------------- settings


@pytest.mark.engines("sqlite", "postgresql")
def test_the_window_reads_back_and_may_change(make_service: MakeService) -> None:
    """None by default; set later, lengthened, or taken away, also by another service."""
    service, other = make_service(), make_service()
    queue = service.create_queue("jobs")
    assert queue.settings.dedup_window is None
    queue.publish("x", key="a")
    finished(queue, "done")
    seen = other.create_queue("jobs", dedup_window=timedelta(minutes=5))
    assert timedelta(minutes=5) == seen.settings.dedup_window
    wait_until(lambda: queue.settings.dedup_window == timedelta(minutes=5), timeout=8)
    assert "created" == queue.publish("y", key="a").outcome
    published = finished(queue, "done")[0]
    assert_taken(queue, "a", published.id)
    assert_taken(seen, "a", published.id)
    service.create_queue("jobs", lease=30)
    assert timedelta(minutes=5) == queue.settings.dedup_window
    assert service.create_queue("jobs", dedup_window=None).settings.dedup_window is None
    assert "created" == queue.publish("z", key="a").outcome


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_window_that_is_none_is_refused(service: QueueService) -> None:
    """The caller's mistake, and no queue is made."""
    windows: list[Any] = [-1, "soon", float("nan"), True]
    for window in windows:
        with refused(window, *ARGUMENT_ERRORS):
            service.create_queue("jobs", dedup_window=window)
    assert [] == service.queues()


def test_a_queue_that_was_dropped_left_no_keys(service: QueueService, jobs: Queue) -> None:
    """One of the same name begins anew."""
    jobs.publish("x", key="k")
    finished(jobs, "done")
    assert service.drop_queue("jobs")
    assert "created" == make_jobs(service).publish("y", key="k").outcome


# -- publishers and finishers that work at the same moment


def publish_all(queue: Queue, rounds: int, way: OnConflict) -> Counter[str]:
    """Publish every key again and again; how often each was created."""
    created: Counter[str] = Counter()
    for number in [*range(rounds)] * 3:
        for key in (f"k{number}", f"k{max(0, number - 1)}"):
            try:
                if queue.publish(key, key=key, on_conflict=way).outcome == "created":
                    created[key] += 1
            except DuplicateKey:
                continue
    return created


def finish_all(queue: Queue, over: threading.Event) -> None:
    """Ack, exchange or reject whatever comes, until it is over and nothing is left."""
    turn = 0
    while True:
        ending = over.is_set()
        messages = queue.consume(2)
        if ending and not messages:
            return
        turn += 1
        if turn % 3 == 0:
            queue.reject(messages, "bad")
        elif turn % 3 == 1 and messages:
            messages = queue.exchange(messages, 2)
            queue.ack(messages)
        else:
            queue.ack(messages)


@pytest.mark.default_on("sqlite", "postgresql")
def test_within_the_window_no_second_message_comes_through(make_service: MakeService) -> None:
    """Publishers and finishers at once: every key is created once, whatever is done about it."""
    queues = [
        make_service().create_queue("jobs", dedup_window=600, archive="all") for _ in range(5)
    ]
    over = threading.Event()
    rounds = 25
    with ThreadPoolExecutor(5) as pool:
        finishing = [pool.submit(finish_all, queue, over) for queue in queues[3:]]
        ways: tuple[OnConflict, ...] = ("raise", "skip", "replace")
        try:
            publishing = [
                pool.submit(publish_all, queue, rounds, way)
                for queue, way in zip(queues, ways, strict=False)
            ]
            created = sum((one.result(60) for one in publishing), Counter[str]())
        finally:
            over.set()
        for one in finishing:
            one.result(60)
    assert {f"k{number}": 1 for number in range(rounds)} == dict(created)
    assert (0, 0, rounds) == counts(queues[0])
