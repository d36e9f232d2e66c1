"""How often each act goes to the database: what comes between a caller and the disk's speed.

The tests count the statements that a driver sends, with those that begin and commit. They measure
no time: what a service sends only now and then is switched off. A change of ``EXPECTED`` is a
decision, for which ``scripts/benchmarks`` has the figures.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest

from queue_over_sql import Publication, QueueService
from queue_over_sql.queue import core_of
from tests.dialects.traffic import Traffic, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import TestDatabase
    from tests.dialects.traffic import Sent

pytestmark = pytest.mark.engines("sqlite", "postgresql", "mariadb", "mysql", "h2")

# What falls due by the clock: to read the queue's settings again, to ask whether an idle connection
# still lives, and to tell other processes of a burst of messages a second time.
BY_THE_CLOCK = (
    "queues.context._LONGEST_REFRESH",
    "database.sessions._IDLE_SECONDS",
    "database.notify._BURST_SECONDS",
)
WORKED, LOOKS = 200, 20
_numbers = itertools.count()


@pytest.fixture
def traffic(engine_name: str) -> Iterator[Traffic]:
    with listening(engine_name) as heard:
        yield heard


@pytest.fixture
def quiet(traffic: Traffic, database: TestDatabase) -> Iterator[QueueService]:
    """A service in whose background nothing happens, and to which the clock brings nothing."""
    del traffic
    with contextlib.ExitStack() as stack:
        for name in BY_THE_CLOCK:
            stack.enter_context(mock.patch(f"queue_over_sql.{name}", math.inf))
        service = QueueService(database.url, consumer_timeout=3600, reaper_interval=3600)
        stack.callback(service.stop)
        yield service


@pytest.fixture
def queue(quiet: QueueService) -> Queue:
    """A queue of that service."""
    return quiet.create_queue("jobs", lease=3600)


def _claimed(queue: Queue, count: int, verb: Callable[[list[Message]], object]) -> Any:
    queue.publish_many(range(count))
    messages = queue.consume(count)
    assert count == len(messages)
    return lambda: verb(messages)


def _consume(queue: Queue, count: int) -> Any:
    queue.publish_many(range(count))
    return lambda: queue.consume(count)


def _hold(queue: Queue, count: int) -> Any:
    queue.publish_many(range(count))
    return lambda: queue.consume(count, hold_for=60)


def _settle_by_token(queue: Queue) -> Any:
    queue.publish("x")
    (message,) = queue.consume(hold_for=60)
    token = message.token
    return lambda: queue.held(token).ack()


def _exchange(queue: Queue, count: int) -> Any:
    queue.publish_many(range(2 * count))
    messages = queue.consume(count)
    return lambda: queue.exchange(messages, count)


def _take(queue: Queue, count: int) -> Any:
    queue.publish_many(range(count))
    connections = core_of(queue).context.connections

    def take() -> None:
        with connections.transaction() as connection:
            queue.take(count, connection=connection)

    return take


def _empty(queue: Queue) -> Any:
    # Above a mark it would look once more, now and then, for what was put below.
    core_of(queue).wake_consumers()
    return queue.consume


ACTS: dict[str, Any] = {
    "publish": lambda q: lambda: q.publish("x"),
    "publish with a key": lambda q: lambda: q.publish("x", key=f"k{next(_numbers)}"),
    "publish 1000": lambda q: lambda: q.publish_many(range(1000)),
    "load 10000": lambda q: lambda: q.load(range(10_000)),
    "consume": lambda q: _consume(q, 1),
    "consume 100": lambda q: _consume(q, 100),
    "consume in vain": _empty,
    "hold 100": lambda q: _hold(q, 100),
    "ack by a token": _settle_by_token,
    "ack": lambda q: _claimed(q, 1, q.ack),
    "ack 100": lambda q: _claimed(q, 100, q.ack),
    "exchange": lambda q: _exchange(q, 1),
    "exchange 100": lambda q: _exchange(q, 100),
    "nack": lambda q: _claimed(q, 1, lambda m: q.nack(m, delay=60)),
    "nack 100": lambda q: _claimed(q, 100, lambda m: q.nack(m, delay=60)),
    "release": lambda q: _claimed(q, 1, q.release),
    "reject": lambda q: _claimed(q, 1, lambda m: q.reject(m, "bad")),
    "extend": lambda q: _claimed(q, 1, q.extend),
    "extend 100": lambda q: _claimed(q, 100, q.extend),
    "take": lambda q: _take(q, 1),
    "take 100": lambda q: _take(q, 100),
    "heartbeat": lambda q: core_of(q).context.consumer.heartbeat,
}


EXPECTED: Final[Mapping[str, Mapping[str, str]]] = {
    "publish": {"": "INSERT"},
    "publish with a key": {"sqlite": "INSERT", "postgresql": "INSERT", "": "BEGIN INSERT COMMIT"},
    "publish 1000": {
        "sqlite": "BEGIN SELECT INSERT*10 SELECT COMMIT",
        "postgresql": "BEGIN SELECT INSERT COMMIT",
        "": "BEGIN SELECT INSERT*7 COMMIT",
    },
    "load 10000": {
        "sqlite": "BEGIN SELECT INSERT*79 COMMIT",
        "postgresql": "BEGIN SELECT COPY COMMIT",
        "": "BEGIN SELECT INSERT*12 COMMIT",
    },
    "consume": {
        "sqlite": "UPDATE",
        "postgresql": "WITH",
        "h2 2.1": "BEGIN UPDATE SELECT COMMIT",
        "": "BEGIN SELECT UPDATE COMMIT",
    },
    "consume 100": {
        "sqlite": "UPDATE",
        "postgresql": "WITH",
        "h2 2.1": "BEGIN UPDATE SELECT COMMIT",
        "": "BEGIN SELECT UPDATE COMMIT",
    },
    "consume in vain": {
        "postgresql": "WITH",
        "mariadb": "BEGIN SELECT COMMIT",
        "mysql": "BEGIN SELECT COMMIT",
        "": "SELECT",
    },
    "hold 100": {
        "sqlite": "UPDATE",
        "postgresql": "WITH",
        "h2 2.1": "BEGIN UPDATE SELECT COMMIT",
        "": "BEGIN SELECT UPDATE COMMIT",
    },
    "ack by a token": {"": "SELECT DELETE"},
    "ack": {"": "DELETE"},
    "ack 100": {
        "mysql": "BEGIN SELECT DELETE COMMIT",
        "h2": "BEGIN SELECT DELETE COMMIT",
        "h2 2.1": "BEGIN SELECT DELETE COMMIT",
        "": "DELETE",
    },
    "exchange": {
        "sqlite": "BEGIN DELETE UPDATE COMMIT",
        "postgresql": "WITH",
        "h2 2.1": "BEGIN DELETE UPDATE SELECT COMMIT",
        "": "BEGIN DELETE SELECT UPDATE COMMIT",
    },
    "exchange 100": {
        "sqlite": "BEGIN DELETE UPDATE COMMIT",
        "postgresql": "WITH",
        "mariadb": "BEGIN DELETE SELECT UPDATE COMMIT",
        "mysql": "BEGIN SELECT DELETE SELECT UPDATE COMMIT",
        "h2": "BEGIN SELECT DELETE SELECT UPDATE COMMIT",
        "h2 2.1": "BEGIN SELECT DELETE UPDATE SELECT COMMIT",
    },
    # With the row that tells the failed attempt.
    "nack": {"": "BEGIN UPDATE INSERT COMMIT"},
    "nack 100": {
        "sqlite": "BEGIN UPDATE INSERT*3 COMMIT",
        "postgresql": "BEGIN UPDATE INSERT*3 COMMIT",
        "": "BEGIN SELECT UPDATE INSERT*3 COMMIT",
    },
    "release": {"": "UPDATE"},
    "reject": {
        "sqlite": "BEGIN SELECT UPDATE SAVEPOINT UPDATE SELECT INSERT DELETE RELEASE INSERT COMMIT",
        "postgresql": "BEGIN SELECT SAVEPOINT WITH RELEASE INSERT COMMIT",
        "": "BEGIN SELECT SAVEPOINT SELECT INSERT DELETE RELEASE INSERT COMMIT",
    },
    "extend": {"": "BEGIN SELECT UPDATE COMMIT"},
    "extend 100": {
        "sqlite": "BEGIN SELECT UPDATE COMMIT",
        "postgresql": "BEGIN SELECT UPDATE COMMIT",
        "": "BEGIN SELECT*2 UPDATE COMMIT",
    },
    "take": {
        "sqlite": "SELECT PRAGMA BEGIN UPDATE SELECT DELETE COMMIT",
        "postgresql": "PING SELECT BEGIN DELETE COMMIT",
        "mariadb": "PING SELECT DELETE COMMIT ROLLBACK",
        "mysql": "PING SELECT DELETE COMMIT ROLLBACK",
        "": "SELECT*2 DELETE",
    },
    "take 100": {
        "sqlite": "SELECT PRAGMA BEGIN UPDATE SELECT DELETE COMMIT",
        "postgresql": "PING SELECT BEGIN DELETE COMMIT",
        "mariadb": "PING SELECT DELETE COMMIT ROLLBACK",
        "mysql": "PING SELECT DELETE COMMIT ROLLBACK",
        "": "SELECT*2 DELETE",
    },
    # It waits a second for locks; a session of a server keeps that limit.
    "heartbeat": {
        "sqlite": "UPDATE",
        "h2": "SELECT SET UPDATE",
        "h2 2.1": "SELECT SET UPDATE",
        "": "SET UPDATE",
    },
}
"""What each act sends: the verbs of its statements, by engine; "" stands for the others.

psycopg begins its own transactions with the first statement, which is noted before that.
"""

PER_MESSAGE: Final = {True: 5, False: 1}
"""At most so many statements for each message of a worker, with a transaction of its own or not."""

CALLS: Final = {"publish": 90, "exchange": 182}
"""Functions of Python that an act on SQLite calls, where nothing is built for each call."""
SLACK = 1.15


def _shown(sent: Sequence[Sent]) -> str:
    """The verbs, each with how often it comes in a row."""
    runs = [(verb, len(list(group))) for verb, group in itertools.groupby(map(_verb, sent))]
    return " ".join(verb if times == 1 else f"{verb}*{times}" for verb, times in runs)


def _verb(sent: Sent) -> str:
    if "FINAL TABLE (INSERT" in sent.text:
        return "INSERT"
    if "pg_notify" in sent.text:
        return "NOTIFY"
    return "BEGIN" if sent.verb == "START" else sent.verb


def _form(queue: Queue) -> str:
    """The engine, or its old version that has statements of its own."""
    features = core_of(queue).context.tables.features
    return "h2 2.1" if features.name == "h2" and not features.skip_locked else features.name


def test_an_act_sends_no_more_than_expected(traffic: Traffic, queue: Queue) -> None:
    """Neither another statement nor another transaction around it."""
    queue.consume()
    form, expected, seen = _form(queue), {}, {}
    for act, prepare in ACTS.items():
        # The first time it may open a connection, and PostgreSQL tells of a burst.
        for _ in range(2):
            seen[act] = _shown(traffic.of(prepare(queue)))
            queue.purge(claimed=True)
        expected[act] = EXPECTED[act].get(form, EXPECTED[act].get(""))
    assert expected == seen


AT_ONCE: Final = ("sqlite", "postgresql")
RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "groups": {"group_limit": 1},
    "limit": {"queue_limit": 300},
    "rate": {"queue_rate": "100000/s"},
}
"""The settings of queues whose claims look at more than messages."""

RULED: Final[Mapping[str, Mapping[str, str]]] = {
    "groups": {"sqlite": "UPDATE", "postgresql": "WITH", "": "SELECT*3 UPDATE"},
    "limit": {
        "sqlite": "SELECT*3 UPDATE*2",
        "postgresql": "SELECT*3 WITH UPDATE",
        "": "SELECT*4 UPDATE*2",
    },
    "rate": {
        "sqlite": "SELECT UPDATE*2",
        "postgresql": "SELECT WITH UPDATE",
        "": "SELECT*2 UPDATE*2",
    },
}
"""What a claim on such a queue sends in its transaction."""


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [1, 100])
def test_a_claim_by_rules_sends_no_more(
    traffic: Traffic, quiet: QueueService, rule: str, count: int
) -> None:
    """Alone and in an exchange, if nothing waits behind and the claim before found something."""
    queue = quiet.create_queue("jobs", lease=3600, **RULES[rule])
    form = _form(queue)
    claim = RULED[rule].get(form, RULED[rule][""])
    acks = EXPECTED["ack 100" if count > 1 else "ack"]
    ack = acks.get(form, acks[""]).removeprefix("BEGIN ").removesuffix(" COMMIT")
    # Whether there is room is asked outside of transactions.
    expected = f"SELECT BEGIN {claim} COMMIT"
    exchange = f"BEGIN {ack} {claim} COMMIT"
    if rule == "groups" and form in AT_ONCE:
        expected = claim
        exchange = EXPECTED["exchange 100" if count > 1 else "exchange"][form]
    elif rule == "groups":
        expected = f"BEGIN {claim} COMMIT"
    claimed = exchanged = ""
    for _ in range(3):
        for part in ("one", "two"):
            queue.publish_many(
                Publication(number, group=f"{part} {number}" if rule == "groups" else None)
                for number in range(count)
            )
        messages: list[Message] = []
        claimed = _shown(traffic.of(lambda: messages.extend(queue.consume(count))))  # noqa: B023 - runs at once
        exchanged = _shown(traffic.of(lambda: queue.exchange(messages, count)))  # noqa: B023 - runs at once
        queue.purge(claimed=True)
    assert expected == claimed
    assert exchange == exchanged


@pytest.mark.parametrize("act", ["ack", "ack 100"])
def test_an_ack_from_groups_sends_no_more(traffic: Traffic, quiet: QueueService, act: str) -> None:
    """As long as nothing is parked behind the messages, it is the one statement."""
    queue = quiet.create_queue("jobs", lease=3600, group_limit=1)
    count, seen = 100 if act == "ack 100" else 1, ""
    for _ in range(2):
        queue.publish_many([Publication(number, group=str(number)) for number in range(count)])
        messages = queue.consume(count)
        assert count == len(messages)
        seen = _shown(traffic.of(lambda: queue.ack(messages)))  # noqa: B023 - runs at once
    assert EXPECTED[act].get(_form(queue), EXPECTED[act].get("")) == seen


@pytest.mark.engines("sqlite", "postgresql")
@pytest.mark.parametrize("count", [1, 100])
def test_a_claim_from_groups_sends_no_more(
    traffic: Traffic, quiet: QueueService, count: int
) -> None:
    """If the one before it got the first messages of groups, it is the one statement, too."""
    queue = quiet.create_queue("jobs", lease=3600, group_limit=1)
    seen = []
    for _ in range(3):
        queue.publish_many([Publication(number, group=str(number)) for number in range(count)])
        messages: list[Message] = []
        sent = traffic.of(lambda: messages.extend(queue.consume(count)))  # noqa: B023 - runs at once
        assert count == len(messages)
        queue.ack(messages)
        seen.append(_shown(sent))
    act = "consume 100" if count == 100 else "consume"
    expected = EXPECTED[act].get(_form(queue), EXPECTED[act].get(""))
    # The statement of PostgreSQL also returns what it left.
    assert [expected if _form(queue) == "sqlite" else "WITH"] * 2 == seen[1:]


@pytest.mark.engines("sqlite", "postgresql")
def test_an_exchange_of_groups_sends_no_more(traffic: Traffic, quiet: QueueService) -> None:
    """Nothing waits behind what it acks, and it gets the first messages of groups."""
    queue = quiet.create_queue("jobs", lease=3600, group_limit=1)
    messages: list[Message] = []
    seen = ""
    for _ in range(3):
        queue.publish_many([Publication(number, group=str(number)) for number in range(100)])
        seen = _shown(traffic.of(lambda: messages.extend(queue.exchange(messages[-100:], 100))))
    assert 300 == len({message.id for message in messages})
    assert EXPECTED["exchange 100"][_form(queue)] == seen


def test_versions_cost_one_statement_at_a_start(
    traffic: Traffic, quiet: QueueService, database: TestDatabase
) -> None:
    """None when a queue is opened: its version comes with its settings."""
    quiet.create_queue("jobs")
    service = QueueService(database.url, consumer_timeout=3600, reaper_interval=3600, notify=False)
    try:
        started = traffic.of(service.start)
        opened = traffic.of(lambda: service.queue("jobs"))
    finally:
        service.stop()
    read = [sent for sent in started if "queue_over_sql_queues.schema_version" in sent.text]
    assert 1 == len(read)
    assert "SELECT" == _shown(opened)


@pytest.mark.engines("postgresql")
def test_a_burst_is_told_once(traffic: Traffic, queue: Queue) -> None:
    """The first publication tells other processes after its commit, those right after it do not."""
    publish, load = (ACTS[act](queue) for act in ("publish 1000", "load 10000"))
    assert "BEGIN SELECT INSERT COMMIT NOTIFY" == _shown(traffic.of(publish))
    assert "BEGIN SELECT COPY COMMIT" == _shown(traffic.of(load))


@pytest.mark.timing  # a worker goes by the time that its handlers take
@pytest.mark.parametrize("transactional", [False, True])
def test_a_worker_sends_little_for_each_message(
    traffic: Traffic, quiet: QueueService, queue: Queue, transactional: bool
) -> None:
    """Messages share claims and acks; a transaction is the handler's own."""
    worker = quiet.worker(concurrency=1)
    left = itertools.count(WORKED - 1, -1)

    @worker.handle("jobs", transactional=transactional)
    def handle(*_: object) -> None:
        if not next(left):
            worker.stop()

    queue.publish_many(range(WORKED))
    quiet.start()
    sent = traffic.of(worker.run)
    assert len(sent) <= PER_MESSAGE[transactional] * WORKED, _shown(sent[-50:])


def test_an_idle_worker_looks_once_and_waits(
    traffic: Traffic, quiet: QueueService, queue: Queue
) -> None:
    """Each look at an empty queue sends what ``consume in vain`` does, and none comes between."""
    worker = quiet.worker(concurrency=1, poll_interval=(0.005, 0.005))
    worker.handle("jobs")(lambda _: None)
    looks = itertools.count()

    def look(*arguments: Any, **options: Any) -> list[Message]:
        if next(looks) == LOOKS - 1:
            worker.stop()
        return consume(*arguments, **options)

    quiet.start()
    claimer = core_of(queue).claimer
    consume = claimer.consume
    with mock.patch.object(claimer, "consume", look):
        # Whether SQLite's file has changed is asked of memory that the processes share.
        sent = [each for each in traffic.of(worker.run) if each.verb != "PRAGMA"]
    forms = EXPECTED["consume in vain"]
    each = forms.get(_form(queue), forms.get("", "")).split()
    # To start took a few.
    assert len(each) == len(sent) // LOOKS, _shown(sent)


def test_who_waits_for_many_queues_sends_little(traffic: Traffic, quiet: QueueService) -> None:
    """A look at nine empty queues is a claim from the one whose turn it is, and a query."""
    queues = [quiet.create_queue(f"jobs_{number}") for number in range(9)]
    for _ in range(len(queues) + 1):
        quiet.consume(queues)
    for queue in queues:
        core_of(queue).wake_consumers()
    forms = EXPECTED["consume in vain"]
    form = _form(queues[0])
    claim = forms.get(form, forms[""])
    expected = f"{claim} SELECT".replace("SELECT SELECT", "SELECT*2")
    assert expected == _shown(traffic.of(lambda: quiet.consume(queues)))


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("act", CALLS)
def test_nothing_is_built_for_each_call(queue: Queue, act: str) -> None:
    """An act that calls many more functions than before builds what it could keep."""
    assert _calls(queue, act) <= CALLS[act] * SLACK


def _calls(queue: Queue, act: str) -> int:
    """How many functions of Python an act calls, once it has run a few times."""
    counts = []
    for _ in range(6):
        run = ACTS[act](queue)
        calls = 0

        def note(_: object, event: str, __: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(note)
        try:
            run()
        finally:
            sys.setprofile(None)
        counts.append(calls)
    return min(counts)
