"""What operators do with single groups: list, pause, resume, configure and unblock them."""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, select

from queue_over_sql import ClaimLost, FixedDelay, GroupState, Publication, Reason
from queue_over_sql.observability import count_queues, diagnose
from queue_over_sql.queue import core_of
from tests.contract.groups.rules import each_rule
from tests.contract.queue_state import set_columns
from tests.refusals import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService, QueueStats
    from queue_over_sql.testing.plugin import MakeService


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue with ordered groups."""
    return service.create_queue("jobs", group_limit=1, archive="all", retry=FixedDelay(3600))


def _payloads(queue: Queue, count: int = 10) -> list[str]:
    return sorted(message.payload for message in queue.consume(count))


@pytest.mark.driver_decides
def test_the_list_says_how_each_group_stands(
    jobs: Queue, service: QueueService, engine: Engine
) -> None:
    """By backlog and by age: what waits, what is in hand, and what holds each group up."""
    names = ("f1", "a1", "b1", "c1", "d1", "a2", "b2", "a3", "e1")
    ids = {name: jobs.publish(name, group=name[0]).id for name in names}
    jobs.publish("alone")
    assert jobs.delete(ids["f1"])
    [a1] = jobs.consume()
    [b1] = jobs.consume()
    b1.nack("no")
    jobs.groups["c"].pause()
    jobs.groups["new one"].configure(limit=7)
    jobs.messages(where=jobs.table.c.id == ids["d1"]).hold()
    # Published within one tick of the clock, they would come by name.
    set_columns(engine, jobs, ids["b1"], scheduled_at=2)

    found = {each.name: each for each in jobs.groups.list()}

    assert ["b", "a", "c", "d", "e", "new one"] == list(found)
    set_columns(engine, jobs, ids["e1"], scheduled_at=1)
    assert "e" == jobs.groups.list(by="age", limit=2)[0].name
    assert ["c", "b"] == [each.name for each in jobs.groups.list(by="blocked", limit=2)]
    waiting = {name: (each.waiting, each.claimed) for name, each in found.items()}
    one = dict.fromkeys(("c", "d", "e"), (1, 0))
    assert {"b": (2, 0), "a": (2, 1), **one, "new one": (0, 0)} == waiting
    assert {
        "a": GroupState.BUSY,
        "b": GroupState.DELAYED,
        "c": GroupState.PAUSED,
        "d": GroupState.HELD,
        "e": GroupState.READY,
        "new one": GroupState.EMPTY,
    } == {name: each.state for name, each in found.items()}
    heads = {name: each.head for name, each in found.items()}
    assert {name: ids.get(f"{name}1") for name in found} == heads
    assert [service.consumer_id] == list(found["a"].consumer_ids)
    assert a1.claimed_at == found["a"].claimed_since
    assert None is found["a"].next_due
    due = jobs.messages(where=jobs.table.c.id == ids["b1"]).first()
    assert due is not None
    assert due.available_at == found["b"].next_due
    assert None is not found["c"].paused_since
    assert (7, 7) == (found["new one"].limit, found["new one"].own_limit)
    assert (1, None) == (found["e"].limit, found["e"].own_limit)
    assert None is not found["e"].oldest_age
    assert found["d"].head == jobs.groups["d"].info().head
    assert GroupState.EMPTY is jobs.groups["none"].info().state


@pytest.mark.driver_decides
def test_a_paused_group_waits_and_no_other_does(jobs: Queue, make_service: MakeService) -> None:
    """In all processes at once, whatever is parked; its order is kept when it goes on."""
    other = make_service().queue("jobs")
    assert [] == other.consume()
    for name in ("a1", "a2", "b1"):
        jobs.publish(name, group=name[0])
    first = jobs.groups["a"]
    first.pause()
    since = first.info().paused_since
    other.groups["a"].pause()
    assert since == first.info().paused_since
    [b1] = other.consume(10)
    assert "b1" == b1.payload
    # So often that what is blocked is parked.
    assert [[]] * 4 == [jobs.consume(10) for _ in range(4)]

    other.groups["a"].resume()
    first.resume()

    found = jobs.consume(10) or other.consume(10)
    assert ["a1", "a2"] == [message.payload for message in found]
    assert None is first.info().paused_since


@pytest.mark.driver_decides
def test_a_limit_of_its_own_counts_at_once(jobs: Queue, make_service: MakeService) -> None:
    """More come in hand without a new publish; less only when some have ended."""
    other = make_service().queue("jobs")
    jobs.groups["a"].configure(limit=2)
    for number in range(6):
        jobs.publish(f"a{number}", group="a")
    held = [*jobs.consume(10), *other.consume(10)]
    assert ["a0", "a1"] == [message.payload for message in held]
    assert [[]] * 4 == [other.consume(10) for _ in range(4)]

    jobs.groups["a"].configure(limit=4)

    more = other.consume(10) or other.consume(10)
    assert ["a2", "a3"] == [message.payload for message in more]
    other.groups["a"].configure(limit=1)
    jobs.groups["a"].configure(limit=1)
    jobs.ack(held)
    other.ack(more[:1])
    assert ([], []) == (jobs.consume(), other.consume())
    other.ack(more[1:])
    assert ["a4"] == [message.payload for message in jobs.consume(1) or other.consume(1)]

    jobs.groups["a"].configure(limit=None)
    assert (1, None) == (jobs.groups["a"].info().limit, jobs.groups["a"].info().own_limit)


@pytest.mark.driver_decides
def test_a_changed_limit_of_the_queue_counts_at_once(
    service: QueueService, make_service: MakeService
) -> None:
    """More come in hand without a new publish; less only when some have ended."""
    jobs = service.create_queue("jobs", group_limit=1, group_order="any")
    operator = make_service()
    other = operator.queue("jobs")
    for number in range(20):
        jobs.publish(number, group="a")
    held = jobs.consume(10)
    assert 1 == len(held)
    # So often that what is blocked is parked.
    assert [[]] * 4 == [other.consume(10) for _ in range(4)]

    operator.create_queue("jobs", group_limit=4)

    held += [*jobs.consume(10), *jobs.consume(10)]
    assert [0, 1, 2, 3] == sorted(message.payload for message in held)
    assert [[]] * 4 == [other.consume(10) for _ in range(4)]

    service.create_queue("jobs", group_limit=1)

    for message in held:
        assert ([], []) == (jobs.consume(10), other.consume(10))
        message.ack()
    more = [*jobs.consume(10), *other.consume(10)]
    assert [4] == [message.payload for message in more]


def test_operators_change_limits_at_once(service: QueueService, make_service: MakeService) -> None:
    """The last one decides, for the queue and for a group, and all that it allows is delivered."""
    jobs = service.create_queue("jobs", group_limit=1, group_order="any")
    for number in range(20):
        jobs.publish(number, group="ab"[number % 2])
    held = [*jobs.consume(10), *jobs.consume(10)]
    assert 2 == len(held)
    assert [[]] * 4 == [jobs.consume(10) for _ in range(4)]

    def change(operator: QueueService, limit: int) -> None:
        operator.create_queue("jobs", group_limit=limit)
        operator.queue("jobs").groups["b"].configure(limit=limit + 2)

    operators = [make_service() for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(change, *each) for each in zip(operators, (3, 4), strict=True)]:
            done.result()

    held += [message for _ in range(4) for message in jobs.consume(10)]
    most = {name: jobs.groups[name].info().limit for name in "ab"}
    assert most == Counter(message.group for message in held)
    assert most["a"] in {3, 4}
    assert most["b"] in {5, 6}


def test_each_change_of_a_group_is_noticed(jobs: Queue, engine: Engine) -> None:
    """By a claim under way, which compares the number in the group's row."""
    rows = core_of(jobs).context.tables.groups
    assert rows is not None
    group, numbers = jobs.groups["a"], list[int]()
    changes: list[Callable[[], object]] = [
        lambda: group.configure(limit=2),
        lambda: group.configure(limit=None),
        group.pause,
        group.resume,
        group.unblock,
    ]
    for change in changes:
        change()
        with engine.connect() as connection:
            numbers.append(connection.execute(select(rows.c.seq)).scalar_one())
    assert numbers == sorted(set(numbers))


@pytest.mark.driver_decides
@pytest.mark.parametrize("way", ["nack", "reject", "unblocked", "requeued", "in a transaction"])
def test_a_dead_letter_blocks_its_group(service: QueueService, engine: Engine, way: str) -> None:
    """If the queue says so, until an operator unblocks the group or requeues the dead letter."""
    jobs = service.create_queue(
        "jobs", group_limit=1, block_on_failure=True, max_attempts=1, retry=FixedDelay(0)
    )
    ids = [jobs.publish(name, group=name[0]).id for name in ("a1", "a2", "a3", "a4", "b1")]
    a1, a2 = jobs.consume(2)
    assert ["a1", "a2"] == [a1.payload, a2.payload]
    if way == "in a transaction":
        with engine.begin() as connection:
            a1.reject("no", connection)
    elif way == "nack":
        a1.nack("no")
    else:
        a1.reject("no")

    group = jobs.groups["a"]
    assert (GroupState.BLOCKED, ids[0], 3) == (
        group.info().state,
        group.info().blocked_by,
        group.info().waiting,
    )
    # What it had in hand behind the dead letter went back, uncounted.
    with pytest.raises(ClaimLost):
        a2.ack()
    assert ["b1"] == _payloads(jobs)
    assert [[]] * 4 == [jobs.consume(10) for _ in range(4)]

    if way == "requeued":
        jobs.archive.messages().requeue()
    else:
        group.unblock()

    assert None is group.info().blocked_by
    found = [*jobs.consume(2), *jobs.consume(2)]
    assert ["a2", "a3"] == [message.payload for message in found]
    assert 1 == found[0].attempt
    jobs.ack(found)
    rest = ["a4", "a1"] if way == "requeued" else ["a4"]
    assert rest == [message.payload for message in [*jobs.consume(2), *jobs.consume(2)]]


def test_a_nack_of_several_loses_none_of_them(service: QueueService) -> None:
    """Also if the first one becomes a dead letter and blocks the group of the others."""
    jobs = service.create_queue(
        "jobs", group_limit=1, block_on_failure=True, archive="all", retry=FixedDelay(0)
    )
    first = jobs.publish("a1", group="a", max_attempts=1)
    jobs.publish_many([Publication(name, group="a") for name in ("a2", "a3")])
    a1, a2, a3 = jobs.consume(3)
    jobs.nack([a1, a2], error="no")
    assert first.id == jobs.groups["a"].info().blocked_by
    with pytest.raises(ClaimLost):
        a3.ack()
    assert [] == jobs.consume(3)
    jobs.groups["a"].unblock()
    found = [*jobs.consume(3), *jobs.consume(3)]
    assert [("a2", 2), ("a3", 1)] == [(each.payload, each.attempt) for each in found]


def test_what_an_operator_ends_blocks_no_group(service: QueueService) -> None:
    """Nor does what expired: nobody has failed with it."""
    jobs = service.create_queue("jobs", group_limit=1, block_on_failure=True)
    first = jobs.publish("cancelled", group="a").id
    jobs.publish("next", group="a")
    assert jobs.cancel(first)
    assert ["next"] == _payloads(jobs)
    assert None is jobs.groups["a"].info().blocked_by


@pytest.mark.threads("each operator is a process with its own service")
def test_two_operators_and_a_consumer_at_once(jobs: Queue, make_service: MakeService) -> None:
    """They change one group while its messages run: none deadlocks, and no message stays behind."""
    for number in range(40):
        jobs.publish(number, group="a")
    queues = [make_service().queue("jobs") for _ in range(3)]
    done = threading.Event()

    def operate(queue: Queue) -> None:
        for number in range(15):
            group = queue.groups["a"]
            group.pause()
            group.configure(limit=1 + number % 4)
            group.resume()
            group.unblock()

    def consume(queue: Queue) -> list[int]:
        found: list[int] = []
        while not done.is_set() or queue.stats().live:
            messages = queue.consume(3)
            queue.ack(messages)
            found += [message.payload for message in messages]
        return found

    with ThreadPoolExecutor(3) as pool:
        consuming = pool.submit(consume, queues[2])
        operating = [pool.submit(operate, queue) for queue in queues[:2]]
        try:
            for each in operating:
                each.result()
        finally:
            done.set()
        assert list(range(40)) == consuming.result(60)


def test_a_queue_without_groups_says_so(service: QueueService) -> None:
    """So does each verb, and a limit or a name that is none is refused."""
    plain, jobs = service.create_queue("plain"), service.create_queue("jobs", group_limit=1)
    for verb in ("info", "pause", "resume", "unblock"):
        with refused(verb, ValueError, match="queue 'plain' has no groups"):
            getattr(plain.groups["a"], verb)()
    with refused("list", ValueError, match="queue 'plain' has no groups"):
        plain.groups.list()
    limits: list[Any] = [0, -1, "4", True]
    for limit in limits:
        with refused(limit, ValueError, TypeError, match="limit"):
            jobs.groups["a"].configure(limit=limit)
    with refused("x", ValueError, match="group"):
        _ = jobs.groups["x" * 201]


@pytest.mark.driver_decides
def test_why_names_what_a_group_waits_for(jobs: Queue, make_service: MakeService) -> None:
    """The head and its own reason; the pause, the dead letter and the limit; parked is none."""
    make_service(consumer_name="packer").start()
    ids = [jobs.publish(name, group=name[0]).id for name in ("a1", "a2", "a3", "b1", "b2")]
    a1, b1 = jobs.consume(1) + jobs.consume(1)
    # So often that what is blocked is parked.
    assert [[]] * 4 == [jobs.consume(10) for _ in range(4)]
    behind = jobs.why(ids[2])
    assert (Reason.GROUP_HEAD, ids[0]) == (behind.reason, behind.waits_for)
    assert f"In its group 'a' message {ids[0]} comes first." in behind.text
    assert "has had it in hand since" in behind.text
    assert a1.consumer_id == behind.consumer_id

    a1.nack("no")
    later = jobs.why(ids[1])
    assert (Reason.GROUP_HEAD, ids[0]) == (later.reason, later.waits_for)
    assert "It is tried again at" in later.text
    assert later.until == jobs.why(ids[0]).until
    jobs.messages(where=jobs.table.c.id == ids[0]).hold()
    assert "An operator holds it." in jobs.why(ids[2]).text
    assert Reason.HELD is jobs.why(ids[0]).reason
    assert jobs.delete(ids[0])
    assert (Reason.IN_LINE, 1) == (jobs.why(ids[1]).reason, jobs.why(ids[1]).position)
    assert (Reason.GROUP_HEAD, ids[1]) == (jobs.why(ids[2]).reason, jobs.why(ids[2]).waits_for)

    jobs.groups["a"].pause()
    assert Reason.GROUP_PAUSED is jobs.why(ids[1]).reason
    assert jobs.groups["a"].info().paused_since == jobs.why(ids[1]).since
    jobs.groups["a"].resume()

    jobs.groups["b"].configure(limit=2)
    more = [jobs.publish(f"b{n}", group="b").id for n in range(3, 5)]
    [b2] = [each for each in jobs.consume(3) if each.payload == "b2"]
    full = jobs.why(more[1])
    assert Reason.GROUP_LIMIT is full.reason
    assert f"has 2 messages in hand ({b1.id}, {b2.id}), and its limit is 2" in full.text


@pytest.mark.driver_decides
def test_each_rule_of_groups_and_limits_has_its_reason(service: QueueService) -> None:
    """That one alone is given, at each message that waits for it; a pause of the queue comes first.

    The other reasons are in the tests of queues.
    """
    said = []
    for queue, waiting, reason in each_rule(service):
        found = queue.why(waiting)
        assert (waiting, queue.name, reason) == (found.message_id, found.queue, found.reason)
        assert found.position is None
        said.append(found.text)
        queue.pause()
        assert Reason.QUEUE_PAUSED is queue.why(waiting).reason
        queue.resume()
        assert reason is queue.why(waiting).reason
    rules = {each for each in Reason if each.startswith("group_")}
    rules |= {Reason.QUEUE_LIMIT, Reason.QUEUE_RATE}
    assert len(rules) == len(set(said))


@pytest.mark.driver_decides
def test_why_names_the_dead_letter_of_a_blocked_group(service: QueueService) -> None:
    """And how to go on, for a shell."""
    jobs = service.create_queue("jobs", group_limit=1, block_on_failure=True)
    first, second = (jobs.publish(n, group="it's").id for n in range(2))
    jobs.consume()[0].reject("no")
    why = jobs.why(second)
    assert (Reason.GROUP_BLOCKED, first) == (why.reason, why.waits_for)
    assert "queue-over-sql group unblock jobs 'it'\"'\"'s'" in why.text
    assert 1 == jobs.stats().blocked_groups


def _stopped(stats: QueueStats) -> tuple[int, int, int]:
    return stats.blocked_groups, stats.paused_groups, stats.throttled_groups


@pytest.mark.threads("metrics and the doctor look by services of their own")
def test_blocked_paused_and_throttled_groups_are_counted(service: QueueService) -> None:
    """By the queue, by the counts of all queues, which metrics use, and by the doctor.

    Throttled is only what has messages due; what is paused or blocked, too, counts as that.
    """
    jobs = service.create_queue(
        "jobs", group_limit=1, block_on_failure=True, group_rate="1/h", archive="all"
    )
    service.create_queue("plain")
    for group in ("a", "b", "c", "d", "paused", "own"):
        jobs.publish_many([Publication(n, group=group) for n in range(2)])
    jobs.groups["own"].configure(rate="unlimited")
    jobs.groups["paused"].pause()
    held: defaultdict[str | None, list[Message]] = defaultdict(list)
    while len(held) < 5:
        for message in jobs.consume(5):
            held[message.group].append(message)
    jobs.reject(held["a"] + held["b"], "no")
    jobs.ack(held["c"] + held["d"] + held["own"])
    jobs.messages(group="d").reschedule(delay=60)

    found = count_queues(service)
    assert (2, 1, 1) == _stopped(found["jobs"]) == _stopped(jobs.stats())
    assert (0, 0, 0) == _stopped(found["plain"])
    said = [each.text for each in diagnose(service) if each.text.startswith("jobs has")]
    assert [
        "jobs has 1 paused group",
        "jobs has 1 group that waits for its rate",
        "jobs has 2 groups that a dead letter blocks",
    ] == said
    assert GroupState.THROTTLED is jobs.groups["c"].info().state

    jobs.groups["paused"].resume()
    jobs.archive.messages(status="rejected").requeue()
    assert (0, 0, 3) == _stopped(count_queues(service)["jobs"]) == _stopped(jobs.stats())


def _blocked_by(service: QueueService, count: int = 3) -> tuple[Queue, int]:
    """A queue of which a dead letter blocks a group, so that its other messages are parked."""
    jobs = service.create_queue("jobs", group_limit=1, block_on_failure=True)
    jobs.publish_many([Publication(n, group="a") for n in range(count)])
    [first] = jobs.consume(1)
    first.reject("no")
    # So often that what is blocked is parked.
    assert [[]] * 4 == [jobs.consume(10) for _ in range(4)]
    return jobs, first.id


@pytest.mark.driver_decides
@pytest.mark.parametrize("way", ["remove", "requeue"])
def test_what_lets_a_group_go_on_lets_out_as_many_as_its_limit(
    service: QueueService, way: str
) -> None:
    """Its own limit, or that of the queue: so many consumers get one each."""
    jobs = service.create_queue("jobs", group_limit=2, block_on_failure=True)
    jobs.groups["own"].configure(limit=3)
    for group in ("a", "own"):
        jobs.publish_many([Publication(n, group=group) for n in range(6)])
    claimed = [each for _ in range(6) for each in jobs.consume(1)]
    firsts = {each.group: each for each in reversed(claimed)}
    jobs.reject(list(firsts.values()), "no")
    jobs.ack([each for each in claimed if each is not firsts[each.group]])
    assert [[]] * 4 == [jobs.consume(10) for _ in range(4)]
    if way == "remove":
        jobs.archive.messages(status="rejected").remove()
    else:
        jobs.archive.messages(status="rejected").requeue()
    found = Counter(each.group for _ in range(9) for each in jobs.consume(1))
    assert {"a": 2, "own": 3} == found


@pytest.mark.driver_decides
@pytest.mark.parametrize("way", ["by id", "by status", "in batches"])
def test_a_removed_dead_letter_blocks_no_longer(service: QueueService, way: str) -> None:
    """Whoever removes it from the archive has seen it. That of another group frees nothing."""
    jobs, dead = _blocked_by(service)
    other = jobs.publish(9, group="other").id
    jobs.consume(1)[0].reject("no")
    assert 1 == jobs.archive.messages(where=jobs.archive.table.c.id == other).remove()
    assert dead == jobs.groups["a"].info().blocked_by
    if way == "by id":
        assert 1 == jobs.archive.messages(where=jobs.archive.table.c.id == dead).remove()
    elif way == "by status":
        assert 1 == jobs.archive.messages(status="rejected").remove()
    else:
        assert 1 == jobs.archive.messages(group="a").remove(progress=lambda _: None)
    assert None is jobs.groups["a"].info().blocked_by
    assert 0 == jobs.stats().blocked_groups
    assert [1, 2] == [message.payload for message in [*jobs.consume(2), *jobs.consume(2)]]


def test_pruning_spares_a_dead_letter_that_blocks(service: QueueService) -> None:
    """Too many dead letters are no reason to start the messages behind it."""
    jobs, dead = _blocked_by(service)
    jobs.publish(9)
    jobs.consume(1)[0].reject("no")
    service.create_queue("jobs", archive_limit=0)
    jobs.refresh()
    assert 1 == service.reap().pruned
    assert [dead] == [message.id for message in jobs.archive.messages().list()]
    assert [] == jobs.consume(10)
    jobs.groups["a"].unblock()
    assert 1 == service.reap().pruned
    assert [1, 2] == [message.payload for message in [*jobs.consume(2), *jobs.consume(2)]]


@pytest.mark.threads("the doctor and the reaper are those of threads")
def test_the_reaper_finds_what_removals_by_sql_left(
    service: QueueService, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """It unblocks the group, and says so; the doctor names the group before."""
    jobs, dead = _blocked_by(service)
    assert 0 == service.reap().repaired
    with engine.begin() as connection:
        connection.execute(delete(jobs.archive.table))
    said = [each for each in diagnose(service) if "no longer there" in each.text]
    assert ["the group 'a'"] == [each.text.rpartition("that of ")[2] for each in said]
    # It looks once a minute.
    core_of(jobs).recovery._idle_after = (-math.inf, None)
    assert 1 == service.reap().repaired
    assert f"dead letter {dead} blocked the group 'a'" in caplog.text
    assert None is jobs.groups["a"].info().blocked_by
    assert [1, 2] == [message.payload for message in [*jobs.consume(2), *jobs.consume(2)]]


def test_a_queue_without_an_archive_stays_blocked(service: QueueService) -> None:
    """Its dead letters are only counted, so that it is no sign if one is not there."""
    service.create_queue("jobs", group_limit=1, archive="none")
    jobs, dead = _blocked_by(service)
    assert 0 == service.reap().repaired
    assert dead == jobs.groups["a"].info().blocked_by
