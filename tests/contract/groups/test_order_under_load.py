"""Groups while several publish and several consume: the order by commit, and one hand at a time."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pytest
from sqlalchemy import Boolean, create_engine, func, text, true

from queue_over_sql import Publication
from tests.waiting import consume_exactly, eventually

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

pytestmark = [
    pytest.mark.threads("its transactions are synchronous ones"),
    # SQLite has one writer: a publish cannot stay open while others publish.
    pytest.mark.engines("postgresql", "mysql", "mariadb", "h2"),
]

GROUPS = [f"g{number}" for number in range(5)]
LATE = 20
"""How many transactions are open at once."""


def test_a_late_commit_is_not_overtaken(
    service: QueueService, database: TestDatabase, make_service: MakeService
) -> None:
    """What committed late, below the place up to which everything was claimed, comes first."""
    queue = service.create_queue("jobs", group_limit=1)
    publisher = make_service().queue("jobs")
    engine = create_engine(database.url)
    with engine.begin() as connection:
        late = publisher.publish("late", group="a", connection=connection)
        deadline = time.monotonic() + 0.4
        while time.monotonic() < deadline:
            publisher.publish_many([Publication("load", group=f"b{n}") for n in range(20)])
            queue.ack(queue.consume(20))
        [elsewhere] = publisher.publish_many([Publication("load", group="b0")])
    [behind] = publisher.publish_many([Publication("behind", group="a")])
    came = {message.id: message for message in consume_exactly(queue, 2)}
    assert {elsewhere.id, late.id} == set(came) or {late.id, behind.id} == set(came)
    queue.ack(list(came.values()))
    assert 1 == len(consume_exactly(queue, 1))
    engine.dispose()


# Any condition may wait like this one, which another transaction lets go on.
_GATE = 34
_FUNCTION = f"""
    CREATE FUNCTION waits() RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock_shared({_GATE}); RETURN true; END $$
"""
_WAITING = text(f"""
    SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
    WHERE datname = current_database() AND objid = {_GATE} AND NOT granted
""")


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("way", ["claim", "claim of first messages", "exchange"])
def test_a_claim_in_one_statement_notices_those_since_it_began(
    way: str, service: QueueService, engine: Engine, make_service: MakeService
) -> None:
    """Its snapshot has neither what committed late, nor the claim of that, only the one behind."""
    queue = service.create_queue("jobs", group_limit=1)
    hand: list[Message] = []
    for groups in ("ab", "cd"):
        queue.ack(hand)
        queue.publish_many([Publication("before", group=group) for group in groups])
        hand = queue.consume(2)
    if way != "exchange":
        queue.ack(hand)
    if way == "claim":
        queue = make_service().queue("jobs")
    other = make_service().queue("jobs")
    where = func.waits(type_=Boolean) == true()
    with ThreadPoolExecutor(1) as threads, engine.connect() as gate, engine.connect() as publisher:
        gate.execute(text(_FUNCTION))
        gate.commit()
        gate.execute(text(f"SELECT pg_advisory_xact_lock({_GATE})"))
        late = other.publish("late", group="a", connection=publisher)
        other.publish_many([Publication("behind", group=group) for group in "ab"])
        if way == "exchange":
            claiming = threads.submit(queue.exchange, hand, 2, where=where)
        else:
            claiming = threads.submit(queue.consume, 2, where=where)
        eventually(lambda: bool(gate.execute(_WAITING).scalar()), "the claim waits")
        publisher.commit()
        assert [late.id] == [message.id for message in other.consume(1)]
        gate.rollback()
        assert ["b"] == [message.group for message in claiming.result(30)]


def test_an_open_publish_delays_nobody(
    service: QueueService, database: TestDatabase, make_service: MakeService
) -> None:
    """Neither those who publish to its group, nor those who consume and end messages of it."""
    queue = service.create_queue("jobs", group_limit=1)
    publisher = make_service().queue("jobs")
    engine = create_engine(database.url)
    with engine.begin() as connection:
        late = publisher.publish("late", group="a", connection=connection)
        for number in range(3):
            made = publisher.publish(number, group="a")
            [message] = consume_exactly(queue, 1)
            assert made.id == message.id
            message.ack()
    assert [late.id] == [message.id for message in consume_exactly(queue, 1)]
    engine.dispose()


def test_transactions_in_opposite_order_do_not_wait_for_each_other(
    service: QueueService, database: TestDatabase, make_service: MakeService
) -> None:
    """Two publish to two groups, each the other way round, while both are claimed."""
    queue = service.create_queue("jobs", group_limit=1)
    publishers = [make_service().queue("jobs") for _ in range(2)]
    engine = create_engine(database.url)
    both = threading.Barrier(2)

    def publish(publisher: Queue, groups: str) -> None:
        for _ in range(5):
            with engine.begin() as connection:
                publisher.publish("x", group=groups[0], connection=connection)
                both.wait(30)
                publisher.publish("x", group=groups[1], connection=connection)
                both.wait(30)

    with ThreadPoolExecutor(2) as threads:
        running = [
            threads.submit(publish, publisher, groups)
            for publisher, groups in zip(publishers, ("ab", "ba"), strict=True)
        ]
        while not all(each.done() for each in running):
            queue.ack(queue.consume(3))
        for each in running:
            each.result()
    engine.dispose()


class Publish(NamedTuple):
    """A publish, and from when on everybody could see it."""

    id: int
    group: str
    committed: float


class Take(NamedTuple):
    """A claim: when it began, when its messages were in hand and until when, and these."""

    began: float
    had: float
    ended: float
    messages: list[tuple[int, str | None]]


class Account:
    """Publishers with open transactions, consumers with batches, and what each of them saw.

    Args:
        url: of the database.
        make_service: makes a service for each of them.
    """

    def __init__(self, url: str, make_service: MakeService) -> None:
        self._engine = create_engine(url)
        self._make = make_service
        self.published: list[Publish] = []
        self.takes: list[Take] = []
        self._over = threading.Event()

    def publish(self, seed: int, count: int) -> None:
        """Publish in transactions that stay open for up to 0.1 s."""
        queue, chance = self._make().queue("jobs"), random.Random(seed)  # noqa: S311 - not for secrets
        for _ in range(count):
            group = chance.choice(GROUPS)
            with self._engine.begin() as connection:
                made = queue.publish("x", group=group, connection=connection)
                time.sleep(chance.random() * 0.1)
            self.published.append(Publish(made.id, group, time.monotonic()))

    def consume(self, seed: int) -> None:
        """Consume batches and end each message, now and then with a failure."""
        queue, chance = self._make().queue("jobs"), random.Random(seed)  # noqa: S311 - not for secrets
        while not self._over.is_set():
            began = time.monotonic()
            messages = queue.consume(chance.choice([1, 3, 10]))
            had = time.monotonic()
            if not messages:
                continue
            failed = chance.random() < 0.1
            ended = time.monotonic()
            if failed:
                queue.release(messages)
            else:
                queue.ack(messages)
                self.takes.append(Take(began, had, ended, [(m.id, m.group) for m in messages]))

    def run(self, publishers: int, consumers: int, count: int) -> None:
        """Work until all that was published was ended."""
        with ThreadPoolExecutor(publishers + consumers) as threads:
            consuming = [threads.submit(self.consume, n) for n in range(consumers)]
            try:
                for each in [threads.submit(self.publish, n, count) for n in range(publishers)]:
                    each.result()
                deadline = time.monotonic() + 60
                while self.count() < publishers * count:
                    assert time.monotonic() < deadline, "not all came"
                    time.sleep(0.02)
            finally:
                self.stop()
            for each in consuming:
                each.result()
        self._engine.dispose()

    def count(self) -> int:
        """How many messages were ended."""
        return sum(len(take.messages) for take in self.takes)

    def stop(self) -> None:
        """Let consumers end."""
        self._over.set()

    def check(self) -> None:
        """Each came once; none was overtaken by a later one of its group, or beside another one."""
        came = [each for take in self.takes for each in take.messages]
        assert sorted(p.id for p in self.published) == sorted(row_id for row_id, _ in came)
        place = {row_id: number for number, (row_id, _) in enumerate(came)}
        for group in GROUPS:
            takes = sorted(
                (t.had, t.ended, t.began, [row_id for row_id, g in t.messages if g == group])
                for t in self.takes
            )
            takes = [each for each in takes if each[3]]
            for (_, ended, _, _), (had, *_) in itertools.pairwise(takes):
                assert ended <= had, f"two of {group} were in hand"
            order = {row_id: n for n, each in enumerate(takes) for row_id in each[3]}
            for _, _, began, ids in takes:
                assert ids == sorted(ids)
                earlier = [
                    p.id
                    for p in self.published
                    if p.group == group
                    and p.id < ids[0]
                    and p.committed < began
                    and order[p.id] > order[ids[0]]
                ]
                assert not earlier, f"{ids} overtook {earlier}"
        assert place


@pytest.mark.parametrize(
    "consumers",
    [
        1,
        pytest.param(4, marks=pytest.mark.default_on("postgresql", "mariadb")),
        pytest.param(8, marks=pytest.mark.full),
    ],
)
def test_the_order_of_a_group_is_that_of_its_commits(
    service: QueueService, database: TestDatabase, make_service: MakeService, consumers: int
) -> None:
    """With insert order that differs from commit order, beside one consumer and several."""
    service.create_queue("jobs", group_limit=1)
    account = Account(database.url, make_service)
    account.run(publishers=4, consumers=consumers, count=50 if consumers == 8 else 25)
    account.check()


@pytest.mark.full
@pytest.mark.parametrize("consumers", [1, 8])
def test_none_of_200_late_commits_is_overtaken(
    service: QueueService, database: TestDatabase, make_service: MakeService, consumers: int
) -> None:
    """Each is below the place up to which everything was claimed; who follows it comes at once."""
    queue = service.create_queue("jobs", group_limit=1)
    account, pairs = Account(database.url, make_service), list[tuple[int, int]]()
    engine, load = create_engine(database.url, pool_size=LATE), 0
    with ThreadPoolExecutor(consumers) as threads:
        consuming = [threads.submit(account.consume, number) for number in range(consumers)]
        try:
            for turn in range(200 // LATE):
                with contextlib.ExitStack() as stack:
                    begun = []
                    for number in range(LATE):
                        connection = stack.enter_context(engine.connect())
                        group = f"{turn} {number}"
                        made = queue.publish("late", group=group, connection=connection)
                        begun.append((connection, group, made.id))
                    deadline = time.monotonic() + 0.4
                    while time.monotonic() < deadline or account.count() < load:
                        assert time.monotonic() < deadline + 30
                        queue.publish_many([Publication(0, group=f"b{n}") for n in range(20)])
                        load += 20
                        while account.count() < load:
                            assert time.monotonic() < deadline + 30
                            time.sleep(0.001)
                    for connection, group, late in begun:
                        connection.commit()
                        pairs.append((late, queue.publish("behind", group=group).id))
                load += 2 * LATE
            deadline = time.monotonic() + 60
            while account.count() < load:
                assert time.monotonic() < deadline, "not all came"
                time.sleep(0.01)
        finally:
            account.stop()
        for each in consuming:
            each.result()
    engine.dispose()
    takes = {row_id: take for take in account.takes for row_id, _ in take.messages}
    assert 200 == len(pairs)
    overtaken = [
        (late, behind)
        for late, behind in pairs
        if takes[late] is not takes[behind] and takes[late].ended > takes[behind].had
    ]
    assert [] == overtaken
    assert all(late < behind for late, behind in pairs)
